package pipeline

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"
)

// records is a topic in memory.
type records struct {
	mutex      sync.Mutex
	newest     map[uint16]map[string]string
	tombstones map[string]bool
	withdrawn  int
}

func newRecords() *records {
	return &records{newest: map[uint16]map[string]string{}, tombstones: map[string]bool{}}
}

func (r *records) Send(vbucket uint16, key string, value []byte) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.newest[vbucket] == nil {
		r.newest[vbucket] = map[string]string{}
	}
	if value == nil {
		delete(r.newest[vbucket], key)
		r.tombstones[key] = true
	} else {
		r.newest[vbucket][key] = string(value)
	}
}

func (r *records) Withdraw(vbucket uint16) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.withdrawn += len(r.newest[vbucket])
	delete(r.newest, vbucket)
}

func (r *records) state() map[string]string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := map[string]string{}
	for _, newest := range r.newest {
		maps.Copy(all, newest)
	}
	return all
}

func start(t *testing.T, cluster *dcpServe) *records {
	t.Helper()
	topic := newRecords()
	pipeline, err := Start(cluster.connectionString(), cluster.Username, cluster.Password, "default", topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipeline.Stop() })
	return topic
}

// awaitTruth waits until the topic has what a correct consumer must end up with.
func awaitTruth(t *testing.T, cluster *dcpServe, topic *records) {
	t.Helper()
	var documents []struct{ Key, Value string }
	cluster.run(t, "truth", nil, &documents)
	truth := map[string]string{}
	for _, one := range documents {
		truth[one.Key] = one.Value
	}
	for end := time.Now().Add(60 * time.Second); !maps.Equal(truth, topic.state()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("expected %d documents, found %d", len(truth), len(topic.state()))
		}
	}
}

func TestDocumentsAndDeletionsAreCopied(t *testing.T) {
	cluster := startCluster(t, "--vbuckets", "16")
	for number := range 100 {
		value := map[string]any{"total": number}
		cluster.run(t, "upsert", map[string]any{"key": fmt.Sprintf("order-%d", number), "value": value}, nil)
	}
	topic := start(t, cluster)
	awaitTruth(t, cluster, topic)
	cluster.run(t, "delete", map[string]any{"key": "order-7"}, nil)
	awaitTruth(t, cluster, topic)
	if !topic.tombstones["order-7"] {
		t.Fatal("expected a tombstone")
	}
}

func TestLostWritesOfAFailoverAreWithdrawn(t *testing.T) {
	cluster := startCluster(t, "--nodes", "3", "--replicas", "1", "--vbuckets", "16")
	cluster.run(t, "load", map[string]any{"count": 500}, nil)
	topic := start(t, cluster)
	awaitTruth(t, cluster, topic)
	for number := range 30 {
		cluster.run(t, "upsert", map[string]any{"key": fmt.Sprintf("late-%d", number), "value": "{}"}, nil)
	}
	awaitTruth(t, cluster, topic)
	cluster.run(t, "failover", map[string]any{"node": 0, "lose": 3}, nil)
	awaitTruth(t, cluster, topic)
	if len(topic.state()) != 527 || topic.withdrawn == 0 {
		t.Fatalf("expected 527 documents after a rollback, found %d after %d", len(topic.state()), topic.withdrawn)
	}
}

func TestStreamsThatAreRefusedAreRequestedAgain(t *testing.T) {
	cluster := startCluster(t, "--vbuckets", "4")
	cluster.run(t, "load", map[string]any{"count": 100}, nil)
	cluster.run(t, "fault", map[string]any{"name": "refuse", "status": "ETMPFAIL", "times": 3}, nil)
	topic := start(t, cluster)
	awaitTruth(t, cluster, topic)
	var faults []struct{ Hits int }
	cluster.run(t, "faults", nil, &faults)
	if faults[0].Hits != 3 {
		t.Fatalf("expected 3 refusals, found %d", faults[0].Hits)
	}
}

func TestARefusalSaysWhatIsExpected(t *testing.T) {
	cluster := startCluster(t, "--nodes", "2")
	err := cluster.try("failover", map[string]any{"node": 9}, nil)
	if err == nil || err.Error() != "failover: node: expected 0 to 1, found 9" {
		t.Fatal(err)
	}
}
