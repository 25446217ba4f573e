// Follows one bucket after the other with gocbcore. It answers each line on standard input with one: `start` and options,
// `state` (the number of documents, and the sum of their checksums), `out-of-order` (the number of such snapshots),
// `stop`. It ends with its standard input.
//
// Options: url, user, password, bucket, and if they are given: ca (PEM file), window (bytes), snappy, oso, collection_id
// (of the only one), stream (id of all streams).
package main

import (
	"bufio"
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/golang/snappy"
)

type version struct {
	seqno uint64
	value []byte // nil for a deletion
}

type observer struct {
	mutex  sync.Mutex
	newest map[string]version
	// Out-of-order snapshots that were completed.
	outOfOrder int
}

func (o *observer) keep(collection uint32, key []byte, seqno uint64, datatype uint8, value []byte) {
	if value != nil && datatype&uint8(memd.DatatypeFlagCompressed) != 0 {
		inflated, err := snappy.Decode(nil, value)
		check(err)
		value = inflated
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	name := fmt.Sprintf("%d/%s", collection, key)
	if seqno >= o.newest[name].seqno {
		o.newest[name] = version{seqno, value}
	}
}

func (o *observer) state() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	count, sum := 0, uint64(0)
	for name, one := range o.newest {
		if one.value != nil {
			count++
			sum += uint64(crc32.ChecksumIEEE(append([]byte(name+"\x00"), one.value...)))
		}
	}
	return fmt.Sprintf("%d %d", count, sum)
}

func (o *observer) Mutation(m gocbcore.DcpMutation) {
	value := m.Value
	if value == nil {
		value = []byte{}
	}
	o.keep(m.CollectionID, m.Key, m.SeqNo, m.Datatype, value)
}

func (o *observer) Deletion(d gocbcore.DcpDeletion) { o.keep(d.CollectionID, d.Key, d.SeqNo, 0, nil) }
func (o *observer) Expiration(e gocbcore.DcpExpiration) {
	o.keep(e.CollectionID, e.Key, e.SeqNo, 0, nil)
}
func (o *observer) End(end gocbcore.DcpStreamEnd, err error) {
	fmt.Fprintln(os.Stderr, "stream end", end.VbID, err)
}
func (o *observer) SnapshotMarker(gocbcore.DcpSnapshotMarker)           {}
func (o *observer) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (o *observer) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (o *observer) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (o *observer) CreateScope(gocbcore.DcpScopeCreation)               {}
func (o *observer) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (o *observer) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (o *observer) OSOSnapshot(snapshot gocbcore.DcpOSOSnapshot) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if snapshot.SnapshotType == 2 {
		o.outOfOrder++
	}
}
func (o *observer) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced) {}

func main() {
	var agent *gocbcore.DCPAgent
	var seen *observer
	questions := bufio.NewScanner(os.Stdin)
	fmt.Println("started")
	for questions.Scan() {
		question, arguments, _ := strings.Cut(questions.Text(), " ")
		switch question {
		case "start":
			options := map[string]string{}
			for _, argument := range strings.Fields(arguments) {
				name, value, _ := strings.Cut(argument, "=")
				options[name] = value
			}
			agent, seen = start(options)
			fmt.Println("streaming")
		case "state":
			fmt.Println(seen.state())
		case "out-of-order":
			fmt.Println(seen.outOfOrder)
		case "stop":
			check(agent.Close())
			fmt.Println("stopped")
		}
	}
}

func start(options map[string]string) (*gocbcore.DCPAgent, *observer) {
	_, withSnappy := options["snappy"]
	_, withOso := options["oso"]
	_, withStreamID := options["stream"]
	window := number(options["window"], 1<<20)
	config := gocbcore.DCPAgentConfig{
		BucketName:        options["bucket"],
		UserAgent:         "interop",
		IoConfig:          gocbcore.IoConfig{UseCollections: true},
		CompressionConfig: gocbcore.CompressionConfig{Enabled: withSnappy, DisableDecompression: true},
		EnableCCCPPoller:  true,
		DCPConfig: gocbcore.DCPConfig{
			UseOSOBackfill: withOso, UseStreamID: withStreamID, UseExpiryOpcode: true, BufferSize: int(window)},
	}
	check(config.FromConnStr(options["url"]))
	config.EnableCCCPPoller = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: options["user"], Password: options["password"]}
	if file := options["ca"]; file != "" {
		text, err := os.ReadFile(file)
		check(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		config.SecurityConfig.UseTLS = true
		config.SecurityConfig.TLSRootCAProvider = func() *x509.CertPool { return pool }
	}
	flags := memd.DcpOpenFlagProducer | memd.DcpOpenFlagIncludeDeleteTimes
	agent, err := gocbcore.CreateDcpAgent(&config, "interop", flags)
	check(err)
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(20*time.Second), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	check(err)
	check(<-ready)
	snapshot, err := agent.ConfigSnapshot()
	check(err)
	count, err := snapshot.NumVbuckets()
	check(err)
	streamOptions := gocbcore.OpenStreamOptions{}
	if text := options["collection_id"]; text != "" {
		ids := []uint32{uint32(number(text, 0))}
		streamOptions.FilterOptions = &gocbcore.OpenStreamFilterOptions{CollectionIDs: ids}
	}
	if withStreamID {
		id := uint16(number(options["stream"], 0))
		streamOptions.StreamOptions = &gocbcore.OpenStreamStreamOptions{StreamID: id}
	}
	seen := &observer{newest: map[string]version{}}
	for vbucket := 0; vbucket < count; vbucket++ {
		opened := make(chan error, 1)
		_, err := agent.OpenStream(uint16(vbucket), memd.DcpStreamAddFlagActiveOnly, 0, 0, 0xffffffffffffffff, 0, 0, seen,
			streamOptions, func(_ []gocbcore.FailoverEntry, err error) { opened <- err })
		check(err)
		check(<-opened)
	}
	return agent, seen
}

func number(text string, otherwise uint64) uint64 {
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseUint(text, 10, 32)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
