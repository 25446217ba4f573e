// Follows one bucket after the other with gocbcore. It answers each line on standard input with one: `start` and options,
// `state` (the number of documents, and the sum of their checksums), `out-of-order` (the number of such snapshots),
// `stop`. It ends with its standard input.
//
// Options: url, user, password, bucket, and if they are given: ca (PEM file), window (bytes), snappy, oso, collection_id
// (of the only one), stream (id of all streams).
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"

	"interop/changes"
	"interop/program"
)

func main() {
	var agent *gocbcore.DCPAgent
	var seen *changes.Documents
	questions := bufio.NewScanner(os.Stdin)
	fmt.Println("started")
	for questions.Scan() {
		question, arguments, _ := strings.Cut(questions.Text(), " ")
		switch question {
		case "start":
			agent, seen = start(program.Options(arguments))
			fmt.Println("streaming")
		case "state":
			fmt.Println(seen.State(func(string) bool { return true }))
		case "out-of-order":
			fmt.Println(seen.OutOfOrder())
		case "stop":
			program.Check(agent.Close())
			fmt.Println("stopped")
		}
	}
}

func start(options map[string]string) (*gocbcore.DCPAgent, *changes.Documents) {
	_, withSnappy := options["snappy"]
	_, withOso := options["oso"]
	_, withStreamID := options["stream"]
	window := program.Number(options["window"], 1<<20)
	config := gocbcore.DCPAgentConfig{
		BucketName:        options["bucket"],
		UserAgent:         "interop",
		IoConfig:          gocbcore.IoConfig{UseCollections: true},
		CompressionConfig: gocbcore.CompressionConfig{Enabled: withSnappy, DisableDecompression: true},
		EnableCCCPPoller:  true,
		DCPConfig: gocbcore.DCPConfig{
			UseOSOBackfill: withOso, UseStreamID: withStreamID, UseExpiryOpcode: true, BufferSize: int(window)},
	}
	program.Check(config.FromConnStr(options["url"]))
	config.EnableCCCPPoller = true
	config.SecurityConfig = changes.Security(options)
	flags := memd.DcpOpenFlagProducer | memd.DcpOpenFlagIncludeDeleteTimes
	agent, err := gocbcore.CreateDcpAgent(&config, "interop", flags)
	program.Check(err)
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.WaitUntilReady(time.Now().Add(20*time.Second), gocbcore.WaitUntilReadyOptions{},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done(err) })
	}))
	snapshot, err := agent.ConfigSnapshot()
	program.Check(err)
	count, err := snapshot.NumVbuckets()
	program.Check(err)
	streamOptions := gocbcore.OpenStreamOptions{}
	if text := options["collection_id"]; text != "" {
		ids := []uint32{uint32(program.Number(text, 0))}
		streamOptions.FilterOptions = &gocbcore.OpenStreamFilterOptions{CollectionIDs: ids}
	}
	if withStreamID {
		id := uint16(program.Number(options["stream"], 0))
		streamOptions.StreamOptions = &gocbcore.OpenStreamStreamOptions{StreamID: id}
	}
	seen := changes.NewDocuments(func(err error) { fmt.Fprintln(os.Stderr, "stream end", err) })
	for vbucket := 0; vbucket < count; vbucket++ {
		program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
			return agent.OpenStream(uint16(vbucket), memd.DcpStreamAddFlagActiveOnly, 0, 0, 0xffffffffffffffff, 0, 0, seen,
				streamOptions, func(_ []gocbcore.FailoverEntry, err error) { done(err) })
		}))
	}
	return agent, seen
}
