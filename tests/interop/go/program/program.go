// Package program has what the programs of this folder share: jobs on standard input, and checks.
package program

import (
	"bufio"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Jobs does a job for each line on standard input, which has options, name=value with spaces between. The answer is a
// line: what the job returns, or `failed` and why.
func Jobs(do func(options map[string]string) string) {
	jobs := bufio.NewScanner(os.Stdin)
	fmt.Println("started")
	for jobs.Scan() {
		fmt.Println(answer(do, Options(jobs.Text())))
	}
}

func answer(do func(options map[string]string) string, options map[string]string) (found string) {
	defer func() {
		if reason := recover(); reason != nil {
			found = "failed " + strings.ReplaceAll(fmt.Sprint(reason), "\n", " ")
		}
	}()
	return do(options)
}

// Options parses name=value with spaces between.
func Options(text string) map[string]string {
	options := map[string]string{}
	for _, argument := range strings.Fields(text) {
		name, value, _ := strings.Cut(argument, "=")
		options[name] = value
	}
	return options
}

// Number parses an option that may be missing.
func Number(text string, otherwise uint64) uint64 {
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseUint(text, 10, 32)
	Check(err)
	return value
}

// Roots returns the certificates of the option ca; nil if there is none.
func Roots(options map[string]string) *x509.CertPool {
	if options["ca"] == "" {
		return nil
	}
	text, err := os.ReadFile(options["ca"])
	Check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// Check ends a job with an error, if there is one.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Expect ends a job unless something holds.
func Expect(holds bool, what string, found interface{}) {
	if !holds {
		panic(fmt.Sprintf("%s: found %v", what, found))
	}
}
