package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkRead is one call of Read on 100 KB, with both halves of the protocol. The lines are
// as long as those of programs, or very short. The floor is os.ReadFile.
func BenchmarkRead(b *testing.B) {
	for name, line := range map[string]string{"40": strings.Repeat("x", 39), "5": "1234"} {
		s := serve(b, Full)
		file := filepath.Join(s.dir, "file")
		if err := os.WriteFile(file, []byte(strings.Repeat(line+"\n", 100_000/(len(line)+1))), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run("LineOf"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.try("Read", ReadInput{FilePath: file, Limit: 100_000}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("FloorOf"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := os.ReadFile(file); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
