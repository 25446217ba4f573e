// Reads a bucket with gocbcore from its beginning to now. Prints `connected`, then the number of rows and the bytes of
// their values. Ends when standard input is closed.
//
// Arguments: url=, user=, password=, and if they are given: ca= (PEM file), snappy=, streams=off (connect only).
package main

import (
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const window = 20_000_000

func main() {
	options := map[string]string{}
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(argument, "=")
		options[name] = value
	}
	agent := connect(options)
	fmt.Println("connected")
	seen := &counter{open: make(chan error, 1)}
	if _, off := options["streams"]; !off {
		snapshot, err := agent.ConfigSnapshot()
		check(err)
		vbuckets, err := snapshot.NumVbuckets()
		check(err)
		seen.left.Store(int64(vbuckets))
		for vbucket := 0; vbucket < vbuckets; vbucket++ {
			flags := memd.DcpStreamAddFlagActiveOnly | memd.DcpStreamAddFlagLatest
			_, err := agent.OpenStream(uint16(vbucket), flags, 0, 0, 0xffffffffffffffff, 0, 0, seen,
				gocbcore.OpenStreamOptions{}, func(_ []gocbcore.FailoverEntry, err error) { check(err) })
			check(err)
		}
		check(<-seen.open)
	}
	fmt.Println(seen.rows.Load(), seen.bytes.Load())
	_, err := io.Copy(io.Discard, os.Stdin)
	check(err)
}

func connect(options map[string]string) *gocbcore.DCPAgent {
	_, withSnappy := options["snappy"]
	config := gocbcore.DCPAgentConfig{
		BucketName:        "default",
		UserAgent:         "peers",
		IoConfig:          gocbcore.IoConfig{UseCollections: true},
		CompressionConfig: gocbcore.CompressionConfig{Enabled: withSnappy},
		DCPConfig:         gocbcore.DCPConfig{BufferSize: window},
	}
	check(config.FromConnStr(options["url"]))
	config.EnableCCCPPoller = true
	config.SecurityConfig = gocbcore.SecurityConfig{
		Auth: gocbcore.PasswordAuthProvider{Username: options["user"], Password: options["password"]}}
	if options["ca"] != "" {
		text, err := os.ReadFile(options["ca"])
		check(err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		config.SecurityConfig.UseTLS = true
		config.SecurityConfig.TLSRootCAProvider = func() *x509.CertPool { return roots }
	}
	agent, err := gocbcore.CreateDcpAgent(&config, "peers", memd.DcpOpenFlagProducer)
	check(err)
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(60*time.Second), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	check(err)
	check(<-ready)
	return agent
}

// counter counts mutations until all streams have ended.
type counter struct {
	rows, bytes, left atomic.Int64
	open              chan error
}

func (c *counter) Mutation(m gocbcore.DcpMutation) {
	c.rows.Add(1)
	c.bytes.Add(int64(len(m.Value)))
}

func (c *counter) End(end gocbcore.DcpStreamEnd, err error) {
	check(err)
	if c.left.Add(-1) == 0 {
		c.open <- nil
	}
}

func (c *counter) SnapshotMarker(gocbcore.DcpSnapshotMarker)           {}
func (c *counter) Deletion(gocbcore.DcpDeletion)                       {}
func (c *counter) Expiration(gocbcore.DcpExpiration)                   {}
func (c *counter) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 {}
func (c *counter) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (c *counter) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (c *counter) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (c *counter) CreateScope(gocbcore.DcpScopeCreation)               {}
func (c *counter) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (c *counter) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (c *counter) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced)             {}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
