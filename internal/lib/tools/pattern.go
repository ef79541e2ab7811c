package tools

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// A needle is a pattern that Grep looks for.
type needle struct {
	re      *regexp.Regexp
	literal []byte // in every match, as it is; empty: nothing is known to be
	lines   bool   // a match is within one line
}

// compile reads a pattern of RE2's syntax. ^ and $ match at a line's ends; CR LF is one line
// end. Across lines the dot matches line ends, too.
func compile(pattern string, fold, literal, lines bool) (*needle, error) {
	if literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	flags := syntax.Perl &^ syntax.OneLine
	if fold {
		flags |= syntax.FoldCase
	}
	if !lines {
		flags |= syntax.DotNL
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, errorf(CodeBadPattern, "the pattern can't be read: %v; look-around and back references are not to be had", err)
	}
	need := required(tree)
	re, err := regexp.Compile(byLine(tree, lines).String())
	if err != nil {
		return nil, errorf(CodeBadPattern, "the pattern can't be used: %v", err)
	}
	if lines && strings.Contains(need, "\n") {
		need = "" // it can't match; the expression finds that
	}
	return &needle{re: re, literal: []byte(need), lines: lines}, nil
}

// byLine makes $ match at a line's end, before a CR too. If matches are within a line, it also
// turns the text's beginning and end into a line's.
func byLine(re *syntax.Regexp, lines bool) *syntax.Regexp {
	for i, sub := range re.Sub {
		re.Sub[i] = byLine(sub, lines)
	}
	switch {
	case re.Op == syntax.OpBeginText && lines:
		return &syntax.Regexp{Op: syntax.OpBeginLine}
	case re.Op == syntax.OpEndText && lines, re.Op == syntax.OpEndLine:
		return &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{
			{Op: syntax.OpQuest, Sub: []*syntax.Regexp{{Op: syntax.OpLiteral, Rune: []rune{'\r'}}}},
			{Op: syntax.OpEndLine},
		}}
	}
	return re
}

// required is the longest text that is known to be in every match.
func required(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 && !slices.Contains(re.Rune, '\uFFFD') {
			return string(re.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if text := required(sub); len(text) > len(longest) {
				longest = text
			}
		}
		return longest
	}
	return ""
}
