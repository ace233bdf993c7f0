// Renders the templates of a Helm chart with Go's own text/template, as Helm does, and those of Helm's functions that
// the chart uses. Input on stdin: {"values": …, "release": …, "chart": …}; argument: the folder of templates.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"text/template"
)

func main() {
	var given struct{ Values, Release, Chart map[string]any }
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber()
	check(decoder.Decode(&given))
	chart := template.New("chart").Option("missingkey=error")
	chart.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var out strings.Builder
			err := chart.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"nindent": func(spaces int, text string) string {
			pad := "\n" + strings.Repeat(" ", spaces)
			return pad + strings.ReplaceAll(text, "\n", pad)
		},
		"quote": func(value any) string { return strconv.Quote(fmt.Sprint(value)) },
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"kindIs":   func(kind string, value any) bool { return reflect.ValueOf(value).Kind().String() == kind },
		"required": func(message string, value any) (any, error) {
			if value == nil || value == "" {
				return nil, fmt.Errorf("%s", message)
			}
			return value, nil
		},
		"int": toInt,
		"add": func(values ...any) int {
			sum := 0
			for _, value := range values {
				sum += toInt(value)
			}
			return sum
		},
		"until": func(count int) []int {
			numbers := make([]int, count)
			for i := range numbers {
				numbers[i] = i
			}
			return numbers
		},
	})
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*"))
	check(err)
	template.Must(chart.ParseFiles(files...))
	data := map[string]any{"Values": given.Values, "Release": given.Release, "Chart": given.Chart}
	for _, file := range files {
		if strings.HasSuffix(file, ".yaml") {
			fmt.Println("---")
			check(chart.ExecuteTemplate(os.Stdout, filepath.Base(file), data))
		}
	}
}

func toInt(value any) int {
	number, err := strconv.Atoi(strings.TrimSpace(fmt.Sprint(value)))
	check(err)
	return number
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
