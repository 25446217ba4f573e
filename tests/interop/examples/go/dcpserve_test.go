package pipeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// dcpServe is an embedded cluster for one test: `dcp serve --json` as a process.
type dcpServe struct {
	URL        string   `json:"url"`
	ControlURL string   `json:"control_url"`
	Username   string   `json:"username"`
	Password   string   `json:"password"`
	Addresses  []string `json:"addresses"`
}

// startCluster starts a cluster, which stops at the end of the test.
func startCluster(t *testing.T, options ...string) *dcpServe {
	t.Helper()
	command := exec.Command("dcp", append([]string{"serve", "--json"}, options...)...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	})
	lines := bufio.NewReader(output)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		t.Fatal("dcp serve ended: its standard error says why")
	}
	cluster := &dcpServe{}
	if err := json.Unmarshal(line, cluster); err != nil {
		t.Fatal(err)
	}
	// Counters follow. A pipe that nobody reads would fill up.
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return cluster
}

// connectionString has hosts and ports, without user and bucket.
func (c *dcpServe) connectionString() string { return "couchbase://" + strings.Join(c.Addresses, ",") }

// run runs an operation of the cluster, such as failover, and decodes its result.
func (c *dcpServe) run(t *testing.T, operation string, arguments map[string]any, result any) {
	t.Helper()
	if err := c.try(operation, arguments, result); err != nil {
		t.Fatal(err)
	}
}

func (c *dcpServe) try(operation string, arguments map[string]any, result any) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, c.ControlURL+"/"+operation, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.SetBasicAuth(c.Username, c.Password)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Result json.RawMessage `json:"result"`
		Error  string          `json:"error"`
	}{}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", operation, answer.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}
