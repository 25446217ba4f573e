// Writes and reads with the Go SDK. Each line on standard input is a job: name=value with spaces between. The answer is
// a line: what the program found, or `failed` and why. See tests/interop/programs.py.
package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"sort"
	"strings"
	"time"

	"github.com/couchbase/gocb/v2"

	"interop/program"
)

type object = map[string]interface{}

// Values as they are stored.
type rawTranscoder struct{}

func (rawTranscoder) Decode(value []byte, _ uint32, out interface{}) error {
	*out.(*[]byte) = value
	return nil
}

func (rawTranscoder) Encode(value interface{}) ([]byte, uint32, error) {
	return value.([]byte), 0x03000000, nil
}

type job struct {
	options map[string]string
	cluster *gocb.Cluster
	bucket  *gocb.Bucket
	ready   time.Duration
	sum     uint64
	count   int
}

func main() { program.Jobs(do) }

func do(options map[string]string) string {
	j := &job{options: options}
	begin := time.Now()
	j.connect()
	defer j.cluster.Close(nil)
	j.ready = time.Since(begin)
	switch options["do"] {
	case "connect":
	case "documents":
		j.documents()
	case "impossible":
		j.impossible()
	case "scan":
		j.scan()
	case "transactions":
		j.transactions()
	case "rollback":
		j.rollback()
	case "conflict":
		j.conflict()
	}
	return fmt.Sprintf("ready=%.3f documents=%d checksum=%d", j.ready.Seconds(), j.count, j.sum)
}

func (j *job) connect() {
	options := gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{Username: j.options["user"], Password: j.options["password"]},
		TransactionsConfig: gocb.TransactionsConfig{
			CleanupConfig: gocb.TransactionsCleanupConfig{DisableLostAttemptCleanup: true},
		},
	}
	options.SecurityConfig.TLSRootCAs = program.Roots(j.options)
	cluster, err := gocb.Connect(j.options["url"], options)
	program.Check(err)
	j.cluster, j.bucket = cluster, cluster.Bucket(j.options["bucket"])
	services := []gocb.ServiceType{gocb.ServiceTypeKeyValue, gocb.ServiceTypeManagement}
	program.Check(j.bucket.WaitUntilReady(10*time.Second, &gocb.WaitUntilReadyOptions{ServiceTypes: services}))
}

func (j *job) documents() {
	c := j.bucket.DefaultCollection()
	large := strings.Repeat("x", 2000)
	var bulk []gocb.BulkOp
	for n := 0; n < 200; n++ {
		bulk = append(bulk, &gocb.UpsertOp{ID: fmt.Sprintf("doc-%03d", n), Value: object{"n": n, "pad": large}})
	}
	program.Check(c.Do(bulk, nil))
	for _, one := range bulk {
		program.Check(one.(*gocb.UpsertOp).Err)
	}
	for n := 0; n < 200; n += 7 {
		_, err := c.Remove(fmt.Sprintf("doc-%03d", n), nil)
		program.Check(err)
	}
	j.conditions(c)
	j.counters(c)
	j.expiries(c)
	j.parts(c)
	j.replicas(c)
	j.collections()
	j.readBack()
}

func (j *job) conditions(c *gocb.Collection) {
	first, err := c.Insert("condition", 1, nil)
	program.Check(err)
	_, err = c.Insert("condition", 2, nil)
	program.Expect(errors.Is(err, gocb.ErrDocumentExists), "insert of a document that exists", err)
	_, err = c.Replace("condition", 2, &gocb.ReplaceOptions{Cas: first.Cas()})
	program.Check(err)
	_, err = c.Replace("condition", 3, &gocb.ReplaceOptions{Cas: first.Cas()})
	program.Expect(errors.Is(err, gocb.ErrCasMismatch), "replace with an old CAS", err)
	_, err = c.Get("missing", nil)
	program.Expect(errors.Is(err, gocb.ErrDocumentNotFound), "get of a missing document", err)
	_, err = c.Insert("locked", 1, nil)
	program.Check(err)
	locked, err := c.GetAndLock("locked", 15*time.Second, nil)
	program.Check(err)
	_, err = c.Upsert("locked", 2, &gocb.UpsertOptions{
		Timeout: 50 * time.Millisecond, RetryStrategy: gocb.NewBestEffortRetryStrategy(nil)})
	program.Expect(errors.Is(err, gocb.ErrTimeout) || errors.Is(err, gocb.ErrDocumentLocked), "write of a locked document", err)
	program.Check(c.Unlock("locked", locked.Cas(), nil))
	_, err = c.Upsert("locked", 3, nil)
	program.Check(err)
}

func (j *job) counters(c *gocb.Collection) {
	b := c.Binary()
	for n := uint64(5); n < 8; n++ {
		result, err := b.Increment("counter", &gocb.IncrementOptions{Delta: 1, Initial: 5})
		program.Check(err)
		program.Expect(result.Content() == n, "increment", result.Content())
	}
	result, err := b.Decrement("counter", &gocb.DecrementOptions{Delta: 1, Initial: -1})
	program.Check(err)
	program.Expect(result.Content() == 6, "decrement", result.Content())
	_, err = c.Upsert("text", []byte("b"), &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder()})
	program.Check(err)
	_, err = b.Append("text", []byte("c"), nil)
	program.Check(err)
	_, err = b.Prepend("text", []byte("a"), nil)
	program.Check(err)
}

func (j *job) expiries(c *gocb.Collection) {
	_, err := c.Upsert("expiring", 1, &gocb.UpsertOptions{Expiry: time.Second})
	program.Check(err)
	_, err = c.Upsert("lasting", object{"a": 1}, &gocb.UpsertOptions{Expiry: time.Hour})
	program.Check(err)
	got, err := c.Get("lasting", &gocb.GetOptions{WithExpiry: true})
	program.Check(err)
	program.Expect(time.Until(got.ExpiryTime()) > 50*time.Minute, "expiry", got.ExpiryTime())
	_, err = c.Upsert("lasting", object{"a": 2}, &gocb.UpsertOptions{PreserveExpiry: true})
	program.Check(err)
	got, err = c.Get("lasting", &gocb.GetOptions{WithExpiry: true})
	program.Check(err)
	program.Expect(!got.ExpiryTime().IsZero(), "preserved expiry", got.ExpiryTime())
	_, err = c.GetAndTouch("lasting", 2*time.Hour, nil)
	program.Check(err)
	_, err = c.Touch("lasting", 3*time.Hour, nil)
	program.Check(err)
	projected, err := c.Get("lasting", &gocb.GetOptions{Project: []string{"a"}})
	program.Check(err)
	var content map[string]int
	program.Check(projected.Content(&content))
	program.Expect(content["a"] == 2, "projection", content)
	for deadline := time.Now().Add(10 * time.Second); ; {
		exists, err := c.Exists("expiring", nil)
		program.Check(err)
		if !exists.Exists() {
			break
		}
		program.Expect(time.Now().Before(deadline), "expiry of a document", "still there")
	}
}

func (j *job) parts(c *gocb.Collection) {
	_, err := c.Upsert("parts", object{"a": object{"b": []int{1, 2}}, "n": 5}, nil)
	program.Check(err)
	changed, err := c.MutateIn("parts", []gocb.MutateInSpec{
		gocb.UpsertSpec("meta.cas", gocb.MutationMacroCAS, &gocb.UpsertSpecOptions{CreatePath: true, IsXattr: true}),
		gocb.ArrayAppendSpec("a.b", 3, nil),
		gocb.IncrementSpec("n", 2, nil),
		gocb.UpsertSpec("new.path", "x", &gocb.UpsertSpecOptions{CreatePath: true}),
	}, nil)
	program.Check(err)
	var counted int
	program.Check(changed.ContentAt(2, &counted))
	program.Expect(counted == 7, "counter in a document", counted)
	found, err := c.LookupIn("parts", []gocb.LookupInSpec{
		gocb.GetSpec("meta.cas", &gocb.GetSpecOptions{IsXattr: true}),
		gocb.GetSpec("a.b[2]", nil),
		gocb.CountSpec("a.b", nil),
		gocb.ExistsSpec("missing", nil),
	}, nil)
	program.Check(err)
	var last, length int
	program.Check(found.ContentAt(1, &last))
	program.Check(found.ContentAt(2, &length))
	program.Expect(last == 3 && length == 3 && !found.Exists(3), "lookup in a document", found)
	_, err = c.MutateIn("parts", []gocb.MutateInSpec{gocb.InsertSpec("n", 1, nil)}, nil)
	program.Expect(errors.Is(err, gocb.ErrPathExists), "insert of a path that exists", err)
	_, err = c.MutateIn("made", []gocb.MutateInSpec{gocb.UpsertSpec("x", 1, nil)},
		&gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsUpsert})
	program.Check(err)
}

func (j *job) replicas(c *gocb.Collection) {
	_, err := c.Upsert("durable", 1, &gocb.UpsertOptions{DurabilityLevel: gocb.DurabilityLevelPersistToMajority})
	program.Check(err)
	_, err = c.Upsert("observed", 1, &gocb.UpsertOptions{PersistTo: 2, ReplicateTo: 1})
	program.Check(err)
	all, err := c.GetAllReplicas("observed", nil)
	program.Check(err)
	copies := 0
	for all.Next() != nil {
		copies++
	}
	program.Expect(copies == 2, "number of copies", copies)
	if j.options["replica_lookup"] != "" {
		found, err := c.LookupInAllReplicas("parts", []gocb.LookupInSpec{gocb.GetSpec("n", nil)}, nil)
		program.Check(err)
		fromReplica := 0
		for one := found.Next(); one != nil; one = found.Next() {
			if one.IsReplica() {
				fromReplica++
			}
		}
		program.Expect(fromReplica == 1, "lookups in replicas", fromReplica)
	}
}

func (j *job) collections() {
	manager := j.bucket.CollectionsV2()
	program.Check(manager.CreateScope("shop", nil))
	program.Check(manager.CreateCollection("shop", "order", &gocb.CreateCollectionSettings{}, nil))
	program.Check(manager.CreateCollection("shop", "dropped", &gocb.CreateCollectionSettings{}, nil))
	c := j.bucket.Scope("shop").Collection("order")
	for n := 0; n < 50; n++ {
		_, err := c.Upsert(fmt.Sprintf("order-%02d", n), object{"total": n}, nil)
		program.Check(err)
	}
	program.Check(manager.DropCollection("shop", "dropped", nil))
	scopes, err := manager.GetAllScopes(nil)
	program.Check(err)
	for _, scope := range scopes {
		if scope.Name == "shop" {
			program.Expect(len(scope.Collections) == 1, "collections", scope.Collections)
		}
	}
}

// readBack sums up the documents that must be there.
func (j *job) readBack() {
	keys := []string{"condition", "locked", "counter", "text", "lasting", "parts", "made", "durable", "observed"}
	for n := 0; n < 200; n++ {
		if n%7 != 0 {
			keys = append(keys, fmt.Sprintf("doc-%03d", n))
		}
	}
	j.read("_default", "_default", keys)
	keys = nil
	for n := 0; n < 50; n++ {
		keys = append(keys, fmt.Sprintf("order-%02d", n))
	}
	j.read("shop", "order", keys)
}

func (j *job) read(scope, collection string, keys []string) {
	sort.Strings(keys)
	c := j.bucket.Scope(scope).Collection(collection)
	for _, key := range keys {
		result, err := c.Get(key, &gocb.GetOptions{Transcoder: rawTranscoder{}})
		program.Check(err)
		var value []byte
		program.Check(result.Content(&value))
		j.count++
		j.sum += uint64(crc32.ChecksumIEEE(append([]byte(scope+"."+collection+"/"+key+"\x00"), value...)))
	}
}

func (j *job) impossible() {
	_, err := j.bucket.DefaultCollection().Upsert("durable", 1, &gocb.UpsertOptions{
		DurabilityLevel: gocb.DurabilityLevelMajority})
	program.Expect(errors.Is(err, gocb.ErrDurabilityImpossible), "durable write with too few copies", err)
}

// scan reads the documents that it has just written, in three ways.
func (j *job) scan() {
	c := j.bucket.DefaultCollection()
	var tokens []gocb.MutationToken
	for n := 0; n < 100; n++ {
		written, err := c.Upsert(fmt.Sprintf("scan-%02d", n), object{"n": n}, nil)
		program.Check(err)
		tokens = append(tokens, *written.MutationToken())
	}
	_, err := c.Upsert("other", 1, nil)
	program.Check(err)
	consistent := gocb.NewMutationState(tokens...)
	var keys []string
	contents := 0
	found, err := c.Scan(gocb.NewRangeScanForPrefix("scan-"), &gocb.ScanOptions{ConsistentWith: consistent})
	program.Check(err)
	for item := found.Next(); item != nil; item = found.Next() {
		var content map[string]int
		program.Check(item.Content(&content))
		contents += content["n"]
		keys = append(keys, item.ID())
	}
	program.Check(found.Err())
	program.Expect(contents == 4950, "scanned documents", contents)
	ids := j.ids(c, gocb.RangeScan{
		From: &gocb.ScanTerm{Term: "scan-10"}, To: &gocb.ScanTerm{Term: "scan-20", Exclusive: true}})
	program.Expect(len(ids) == 10 && ids[0] == "scan-10" && ids[9] == "scan-19", "range of keys", ids)
	ids = j.ids(c, gocb.SamplingScan{Limit: 7, Seed: 5})
	program.Expect(len(ids) == 7, "sample of keys", ids)
	_, err = c.Remove("other", nil)
	program.Check(err)
	j.read("_default", "_default", keys)
}

func (j *job) ids(c *gocb.Collection, kind gocb.ScanType) []string {
	found, err := c.Scan(kind, &gocb.ScanOptions{IDsOnly: true})
	program.Check(err)
	var ids []string
	for item := found.Next(); item != nil; item = found.Next() {
		ids = append(ids, item.ID())
	}
	program.Check(found.Err())
	sort.Strings(ids)
	return ids
}

func (j *job) transactions() {
	c := j.bucket.DefaultCollection()
	for _, key := range []string{"replaced", "removed"} {
		_, err := c.Upsert(key, object{"n": 1}, nil)
		program.Check(err)
	}
	_, err := j.cluster.Transactions().Run(func(t *gocb.TransactionAttemptContext) error {
		replaced, err := t.Get(c, "replaced")
		if err != nil {
			return err
		}
		if _, err = t.Replace(replaced, object{"n": 2}); err != nil {
			return err
		}
		if _, err = t.Insert(c, "inserted", object{"n": 3}); err != nil {
			return err
		}
		removed, err := t.Get(c, "removed")
		if err != nil {
			return err
		}
		if err = t.Remove(removed); err != nil {
			return err
		}
		own, err := t.Get(c, "replaced")
		if err != nil {
			return err
		}
		var content map[string]int
		if err = own.Content(&content); err != nil || content["n"] != 2 {
			return fmt.Errorf("own write: %v %v", content, err)
		}
		if _, err = t.Get(c, "removed"); !errors.Is(err, gocb.ErrDocumentNotFound) {
			return fmt.Errorf("own removal: %v", err)
		}
		return nil
	}, nil)
	program.Check(err)
	j.read("_default", "_default", []string{"replaced", "inserted"})
}

func (j *job) rollback() {
	c := j.bucket.DefaultCollection()
	_, err := c.Upsert("kept", object{"n": 1}, nil)
	program.Check(err)
	_, err = j.cluster.Transactions().Run(func(t *gocb.TransactionAttemptContext) error {
		kept, err := t.Get(c, "kept")
		if err != nil {
			return err
		}
		if _, err = t.Replace(kept, object{"n": 2}); err != nil {
			return err
		}
		if _, err = t.Insert(c, "never", object{"n": 3}); err != nil {
			return err
		}
		return errors.New("roll back")
	}, nil)
	var failed *gocb.TransactionFailedError
	program.Expect(errors.As(err, &failed), "rollback", err)
	exists, err := c.Exists("never", nil)
	program.Check(err)
	program.Expect(!exists.Exists(), "insert that was rolled back", "still there")
	j.read("_default", "_default", []string{"kept"})
}

// conflict lets two transactions increment the same document: the second one meets what the first has staged.
func (j *job) conflict() {
	c := j.bucket.DefaultCollection()
	_, err := c.Upsert("shared", object{"n": 0}, nil)
	program.Check(err)
	staged, done, attempts := make(chan bool), make(chan error, 1), 0
	increment := func(t *gocb.TransactionAttemptContext) error {
		shared, err := t.Get(c, "shared")
		if err != nil {
			return err
		}
		var content map[string]int
		if err = shared.Content(&content); err != nil {
			return err
		}
		_, err = t.Replace(shared, object{"n": content["n"] + 1})
		return err
	}
	go func() {
		<-staged
		_, err := j.cluster.Transactions().Run(func(t *gocb.TransactionAttemptContext) error {
			attempts++
			return increment(t)
		}, nil)
		done <- err
	}()
	_, err = j.cluster.Transactions().Run(func(t *gocb.TransactionAttemptContext) error {
		if err := increment(t); err != nil {
			return err
		}
		staged <- true
		time.Sleep(300 * time.Millisecond)
		return nil
	}, nil)
	program.Check(err)
	program.Check(<-done)
	program.Expect(attempts > 1, "attempts of the second transaction", attempts)
	j.read("_default", "_default", []string{"shared"})
}
