// Does with gocbcore what the connector go-dcp does with it, in the same order: bootstrap by HTTP, questions to the
// management service, checkpoints in xattrs, members in a document, observed copies, streams up to the present seqnos.
// Each line on standard input is a job: name=value with spaces between. The answer is a line: what the program found, or
// `failed` and why. See tests/interop/programs.py.
package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"

	"interop/changes"
	"interop/program"
)

const (
	prefix = "_connector:cbgo:"
	// Flags of JSON documents of SDKs.
	jsonFlags = 0x03000000 | 0x2000000
	// Resume although tombstones were purged; since 7.2.
	ignorePurged = memd.DcpStreamAddFlag(0x80)
)

type job struct {
	options map[string]string
	agent   *gocbcore.Agent
	dcp     *gocbcore.DCPAgent
	seen    *changes.Documents
	// Why streams have ended.
	ended chan error
}

func main() { program.Jobs(do) }

func do(options map[string]string) string {
	j := &job{options: options, ended: make(chan error, 1024)}
	j.seen = changes.NewDocuments(func(err error) { j.ended <- err })
	begin := time.Now()
	j.connect()
	defer j.agent.Close()
	defer j.dcp.Close()
	ready := time.Since(begin)
	j.askManagement()
	j.keepCheckpoints()
	j.join()
	j.observeCopies()
	j.stream()
	count, sum := j.seen.State(func(name string) bool { return !strings.Contains(name, prefix) })
	return fmt.Sprintf("ready=%.3f documents=%d checksum=%d", ready.Seconds(), count, sum)
}

func (j *job) connect() {
	security := changes.Security(j.options)
	seed := gocbcore.SeedConfig{HTTPAddrs: strings.Split(j.options["http"], ",")}
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{
		BucketName: j.options["bucket"], SeedConfig: seed, SecurityConfig: security,
		CompressionConfig: gocbcore.CompressionConfig{Enabled: true}, IoConfig: gocbcore.IoConfig{UseCollections: true},
		DefaultRetryStrategy: gocbcore.NewBestEffortRetryStrategy(nil),
	})
	program.Check(err)
	j.agent = agent
	deadline := time.Now().Add(10 * time.Second)
	ready := gocbcore.WaitUntilReadyOptions{RetryStrategy: gocbcore.NewBestEffortRetryStrategy(nil)}
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.WaitUntilReady(deadline, ready, func(_ *gocbcore.WaitUntilReadyResult, err error) { done(err) })
	}))
	dcp, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{
		BucketName: j.options["bucket"], SeedConfig: seed, SecurityConfig: security,
		CompressionConfig: gocbcore.CompressionConfig{Enabled: true}, IoConfig: gocbcore.IoConfig{UseCollections: true},
		DCPConfig: gocbcore.DCPConfig{
			BufferSize: 1 << 20, UseExpiryOpcode: true, UseChangeStreams: j.options["magma"] != ""},
	}, "interop", memd.DcpOpenFlagProducer)
	program.Check(err)
	j.dcp = dcp
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return dcp.WaitUntilReady(deadline, ready, func(_ *gocbcore.WaitUntilReadyResult, err error) { done(err) })
	}))
}

func (j *job) askManagement() {
	endpoint := ""
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.Ping(gocbcore.PingOptions{
			KVDeadline: time.Now().Add(5 * time.Second), MgmtDeadline: time.Now().Add(5 * time.Second),
			ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService, gocbcore.MgmtService},
		}, func(result *gocbcore.PingResult, err error) {
			for _, kind := range []gocbcore.ServiceType{gocbcore.MemdService, gocbcore.MgmtService} {
				if err == nil && (len(result.Services[kind]) == 0 || result.Services[kind][0].State != gocbcore.PingStateOK) {
					err = fmt.Errorf("ping of service %v: %v", kind, result.Services[kind])
				}
			}
			if err == nil {
				endpoint = result.Services[gocbcore.MgmtService][0].Endpoint
			}
			done(err)
		})
	}))
	var pools struct{ ImplementationVersion string }
	j.get(endpoint+"/pools", &pools)
	program.Expect(strings.HasPrefix(pools.ImplementationVersion, j.options["version"]), "version", pools)
	var bucket struct{ BucketType, StorageBackend string }
	j.get(endpoint+"/pools/default/buckets/"+j.options["bucket"], &bucket)
	program.Expect(bucket.BucketType == "membase", "bucket", bucket)
	program.Expect((bucket.StorageBackend == "magma") == (j.options["magma"] != ""), "bucket", bucket)
}

func (j *job) get(url string, into interface{}) {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: program.Roots(j.options)}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequest("GET", url, nil)
	program.Check(err)
	request.SetBasicAuth(j.options["user"], j.options["password"])
	response, err := client.Do(request)
	program.Check(err)
	defer response.Body.Close()
	program.Check(json.NewDecoder(response.Body).Decode(into))
}

// keepCheckpoints writes a document for each vbucket, whose xattr has the position, reads and removes them.
func (j *job) keepCheckpoints() {
	for vbucket := 0; vbucket < j.vbuckets(); vbucket++ {
		key := []byte(fmt.Sprintf("%sgroup:checkpoint:%d", prefix, vbucket))
		_, err := j.lookUp(key)
		program.Expect(errors.Is(err, gocbcore.ErrDocumentNotFound), "checkpoint before the first one", err)
		position := []byte(fmt.Sprintf(`{"checkpoint":{"vbuuid":%d,"seqno":2},"bucketUuid":"x"}`, vbucket))
		upsert := gocbcore.SubDocOp{
			Op: memd.SubDocOpDictSet, Flags: memd.SubdocFlagXattrPath, Path: "cbgo", Value: position}
		err = j.mutate(key, upsert, 0, 0, 0)
		program.Expect(errors.Is(err, gocbcore.ErrDocumentNotFound), "xattr of a missing document", err)
		program.Check(j.set(key, []byte{}))
		program.Check(j.mutate(key, upsert, 0, 0, 0))
		found, err := j.lookUp(key)
		program.Check(err)
		program.Expect(bytes.Contains(found, []byte(`"seqno":2`)), "checkpoint", string(found))
		program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
			return j.agent.Delete(gocbcore.DeleteOptions{Key: key}, func(_ *gocbcore.DeleteResult, err error) { done(err) })
		}))
	}
}

// join registers a member: its name in the document of all, and a document that expires.
func (j *job) join() {
	all, id := []byte(prefix+"group:all"), []byte(prefix+"group:instance:3f")
	path := gocbcore.SubDocOp{Op: memd.SubDocOpDictSet, Path: "`" + string(id) + "`", Value: []byte("17")}
	program.Check(j.mutate(all, path, memd.SubdocDocFlagMkDoc, 0, 0))
	instance := gocbcore.SubDocOp{Op: memd.SubDocOpSetDoc, Value: []byte(`{"type":"instance"}`)}
	err := j.mutate(id, instance, 0, 60, 0)
	program.Expect(errors.Is(err, gocbcore.ErrDocumentNotFound), "update of a missing document", err)
	program.Check(j.set(id, []byte(`{}`)))
	program.Check(j.mutate(id, instance, 0, 60, 0))
	var members map[string]int
	cas := j.read(all, &members)
	program.Expect(members[string(id)] == 17, "members", members)
	set := gocbcore.SubDocOp{Op: memd.SubDocOpSetDoc, Value: []byte(`{}`)}
	err = j.mutate(all, set, 0, 0, cas+1)
	program.Expect(errors.Is(err, gocbcore.ErrCasMismatch), "update with another CAS", err)
	program.Check(j.mutate(all, set, 0, 0, cas))
}

func (j *job) mutate(
	key []byte, op gocbcore.SubDocOp, flags memd.SubdocDocFlag, expiry uint32, cas gocbcore.Cas,
) error {
	return changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.MutateIn(gocbcore.MutateInOptions{
			Key: key, Flags: flags, Ops: []gocbcore.SubDocOp{op}, Expiry: expiry, Cas: cas,
		}, func(_ *gocbcore.MutateInResult, err error) { done(err) })
	})
}

func (j *job) set(key, value []byte) error {
	return changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.Set(gocbcore.SetOptions{Key: key, Value: value, Flags: jsonFlags},
			func(_ *gocbcore.StoreResult, err error) { done(err) })
	})
}

func (j *job) lookUp(key []byte) (found []byte, err error) {
	err = changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.LookupIn(gocbcore.LookupInOptions{
			Key: key,
			Ops: []gocbcore.SubDocOp{{Op: memd.SubDocOpGet, Flags: memd.SubdocFlagXattrPath, Path: "cbgo"}},
		}, func(result *gocbcore.LookupInResult, err error) {
			if err == nil {
				found, err = result.Ops[0].Value, result.Ops[0].Err
			}
			done(err)
		})
	})
	return found, err
}

func (j *job) read(key []byte, into interface{}) (cas gocbcore.Cas) {
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.Get(gocbcore.GetOptions{Key: key}, func(result *gocbcore.GetResult, err error) {
			if err == nil {
				cas, err = result.Cas, json.Unmarshal(result.Value, into)
			}
			done(err)
		})
	}))
	return cas
}

// observeCopies asks all copies of each vbucket how far they are, as the mitigation of rollbacks does.
func (j *job) observeCopies() {
	for vbucket := 0; vbucket < j.vbuckets(); vbucket++ {
		uuid := j.failoverLog(uint16(vbucket))[0].VbUUID
		for replica := 0; replica < 2; replica++ {
			program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
				return j.agent.ObserveVb(gocbcore.ObserveVbOptions{
					VbID: uint16(vbucket), ReplicaIdx: replica, VbUUID: uuid,
				}, func(_ *gocbcore.ObserveVbResult, err error) { done(err) })
			}))
		}
	}
}

func (j *job) failoverLog(vbucket uint16) (log []gocbcore.FailoverEntry) {
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.dcp.GetFailoverLog(vbucket, func(entries []gocbcore.FailoverEntry, err error) {
			log = entries
			done(err)
		})
	}))
	return log
}

func (j *job) stream() {
	ids := []uint32{0, j.collection("shop", "order")}
	ends := j.seqnos(ids)
	flags := memd.DcpStreamAddFlag(0)
	if j.options["ignore_purged"] != "" {
		flags = ignorePurged
	}
	for vbucket, end := range ends {
		options := gocbcore.OpenStreamOptions{
			ManifestOptions: &gocbcore.OpenStreamManifestOptions{ManifestUID: 0},
			FilterOptions:   &gocbcore.OpenStreamFilterOptions{CollectionIDs: ids},
		}
		program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
			return j.dcp.OpenStream(vbucket, flags, 0, 0, end, 0, 0, j.seen, options,
				func(_ []gocbcore.FailoverEntry, err error) { done(err) })
		}))
	}
	for range ends {
		select {
		case err := <-j.ended:
			program.Check(err)
		case <-time.After(10 * time.Second):
			panic("a stream does not end")
		}
	}
}

func (j *job) collection(scope, name string) (id uint32) {
	program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return j.agent.GetCollectionID(scope, name, gocbcore.GetCollectionIDOptions{},
			func(result *gocbcore.GetCollectionIDResult, err error) {
				if err == nil {
					id = result.CollectionID
				}
				done(err)
			})
	}))
	return id
}

func (j *job) seqnos(collections []uint32) map[uint16]gocbcore.SeqNo {
	found := map[uint16]gocbcore.SeqNo{}
	snapshot, err := j.dcp.ConfigSnapshot()
	program.Check(err)
	nodes, err := snapshot.NumServers()
	program.Check(err)
	for node := 1; node <= nodes; node++ {
		for _, id := range collections {
			options := gocbcore.GetVbucketSeqnoOptions{
				FilterOptions: &gocbcore.GetVbucketSeqnoFilterOptions{CollectionID: id}}
			program.Check(changes.Wait(func(done func(error)) (gocbcore.PendingOp, error) {
				return j.dcp.GetVbucketSeqnos(node, memd.VbucketStateActive, options,
					func(entries []gocbcore.VbSeqNoEntry, err error) {
						for _, entry := range entries {
							if entry.SeqNo > found[entry.VbID] {
								found[entry.VbID] = entry.SeqNo
							}
						}
						done(err)
					})
			}))
		}
	}
	return found
}

func (j *job) vbuckets() int {
	snapshot, err := j.dcp.ConfigSnapshot()
	program.Check(err)
	count, err := snapshot.NumVbuckets()
	program.Check(err)
	return count
}
