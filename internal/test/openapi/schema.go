package openapi

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
	readers  = reflect.TypeFor[json.Unmarshaler]()
)

// schema returns the schema of a type: a reference if the type is a named struct.
func (m *maker) schema(t reflect.Type) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t == rawType:
		return object{}
	case t.Kind() != reflect.Struct && t.Implements(readers) || t.Kind() == reflect.String && reflect.PointerTo(t).Implements(readers):
		return object{"description": m.comments[t.Name()]} // it reads several forms
	}
	switch t.Kind() {
	case reflect.Pointer:
		return m.schema(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.String:
		out := object{"type": "string"}
		if values := m.comments.values(t.Name()); t.PkgPath() != "" && len(values) > 0 {
			out["enum"] = values
		}
		return out
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "format": "byte"}
		}
		return object{"type": "array", "items": m.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": m.schema(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		if t.Name() == "" {
			return m.structure(t)
		}
		return m.component(t)
	}
	m.err = fmt.Errorf("%s can't be described", t)
	return object{}
}

// component returns a reference to a type's schema, and makes that schema.
func (m *maker) component(t reflect.Type) object {
	name := t.Name()
	if other := m.doc.Names[t]; other != "" {
		name = other
	}
	if known, ok := m.types[name]; ok && known != t {
		m.err = fmt.Errorf("both %s and %s would be %s", known, t, name)
	} else if !ok {
		m.types[name] = t
		m.schemas[name] = m.structure(t)
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (m *maker) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	m.fields(t, properties, &required)
	out := object{"type": "object", "properties": properties}
	if m.asked[t] {
		out["additionalProperties"] = false
		required = m.doc.Required[t]
	}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	if text := m.comments[t.Name()]; text != "" && t.Name() != "" {
		out["description"] = text
	}
	return out
}

// fields adds a struct's fields as encoding/json sees them. A field of the struct itself
// takes precedence over one of an embedded struct.
func (m *maker) fields(t reflect.Type, properties object, required *[]string) {
	var own []reflect.StructField
	for f := range t.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			all := required
			if f.Type.Kind() == reflect.Pointer {
				all = new([]string)
			}
			m.fields(inner, properties, all)
			continue
		}
		own = append(own, f)
	}
	for _, f := range own {
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		schema := m.schema(f.Type)
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if !optional {
			*required = append(*required, name)
			if k := f.Type.Kind(); k == reflect.Pointer {
				schema = nullable(schema)
			}
		}
		if text := m.comments[t.Name()+"."+f.Name]; text != "" {
			described := object{"description": text}
			for k, v := range schema {
				described[k] = v
			}
			schema = described
		}
		properties[name] = schema
	}
}

func nullable(schema object) object {
	if text, ok := schema["type"].(string); ok && schema["enum"] == nil {
		schema["type"] = []any{text, "null"}
		return schema
	}
	return object{"anyOf": []any{schema, object{"type": "null"}}}
}

// comments are the doc comments of types, by name, and of fields, by TYPE.FIELD. The values of
// the constants of a type are under TYPE=.
type comments map[string]string

func (c comments) values(of string) (all []any) {
	if c[of+"="] == "" {
		return nil
	}
	for v := range strings.SplitSeq(c[of+"="], "\x00") {
		all = append(all, v)
	}
	return all
}

func readComments(folders []string) (comments, error) {
	all := comments{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s has no source: %w", folder, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, decl := range parsed.Decls {
				if g, ok := decl.(*ast.GenDecl); ok {
					all.add(g)
				}
			}
		}
	}
	return all, nil
}

func (c comments) add(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			doc := s.Doc
			if doc == nil && len(g.Specs) == 1 {
				doc = g.Doc
			}
			c[s.Name.Name] = flat(doc.Text())
			if st, ok := s.Type.(*ast.StructType); ok {
				c.addFields(s.Name.Name, st)
			}
		case *ast.ValueSpec:
			of, ok := s.Type.(*ast.Ident)
			if g.Tok != token.CONST || !ok || len(s.Values) != 1 {
				continue
			}
			if lit, ok := s.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					values := append(strings.Split(c[of.Name+"="], "\x00"), text)
					c[of.Name+"="] = strings.TrimPrefix(strings.Join(values, "\x00"), "\x00")
				}
			}
		}
	}
}

func (c comments) addFields(of string, st *ast.StructType) {
	for _, f := range st.Fields.List {
		text := flat(f.Doc.Text() + " " + f.Comment.Text())
		for _, name := range f.Names {
			c[of+"."+name.Name] = text
		}
	}
}

func flat(text string) string { return strings.Join(strings.Fields(text), " ") }
