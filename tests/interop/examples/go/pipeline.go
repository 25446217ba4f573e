// Package pipeline copies the changes of a bucket into a topic, as a Kafka connector does.
package pipeline

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const (
	timeout = 20 * time.Second
	pause   = 100 * time.Millisecond
	forever = gocbcore.SeqNo(0xffffffffffffffff)
)

// Topic receives the records. A record without a value (nil) is a tombstone.
type Topic interface {
	Send(vbucket uint16, key string, value []byte)
	// Withdraw removes all records of a vbucket: a failover has lost some of their changes, and they are sent again.
	Withdraw(vbucket uint16)
}

// Pipeline is a running copy.
type Pipeline struct {
	agent *gocbcore.DCPAgent
	topic Topic
	done  chan struct{}
	work  sync.WaitGroup
}

// Start connects to a bucket, and copies it from the beginning on.
func Start(url, user, password, bucket string, topic Topic) (*Pipeline, error) {
	config := gocbcore.DCPAgentConfig{
		BucketName: bucket,
		UserAgent:  "pipeline",
		IoConfig:   gocbcore.IoConfig{UseCollections: true},
		DCPConfig:  gocbcore.DCPConfig{BufferSize: 1 << 20},
	}
	if err := config.FromConnStr(url); err != nil {
		return nil, err
	}
	config.EnableCCCPPoller = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: user, Password: password}
	agent, err := gocbcore.CreateDcpAgent(&config, "pipeline", memd.DcpOpenFlagProducer)
	if err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(timeout), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	if err == nil {
		err = <-ready
	}
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	count, err := snapshot.NumVbuckets()
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	pipeline := &Pipeline{agent: agent, topic: topic, done: make(chan struct{})}
	for number := 0; number < count; number++ {
		pipeline.work.Add(1)
		go pipeline.follow(uint16(number))
	}
	return pipeline, nil
}

// Stop ends the copy.
func (p *Pipeline) Stop() error {
	close(p.done)
	err := p.agent.Close()
	p.work.Wait()
	return err
}

// follow keeps one stream open, from its position on.
func (p *Pipeline) follow(number uint16) {
	defer p.work.Done()
	position := &vbucket{pipeline: p, number: number}
	for {
		position.ended = make(chan error, 1)
		if err := p.open(position); err == nil {
			select {
			case <-position.ended:
			case <-p.done:
				return
			}
		} else if errors.Is(err, gocbcore.ErrMemdRollback) {
			p.topic.Withdraw(number)
			*position = vbucket{pipeline: p, number: number}
			continue
		}
		// The node is gone, or does not have the vbucket any more: the next map says who has it.
		select {
		case <-time.After(pause):
		case <-p.done:
			return
		}
	}
}

// open requests the stream of a vbucket, and waits for the answer.
func (p *Pipeline) open(at *vbucket) error {
	answered := make(chan error, 1)
	operation, err := p.agent.OpenStream(at.number, memd.DcpStreamAddFlagActiveOnly, at.vbuuid, at.seqno, forever,
		at.snapshotStart, at.snapshotEnd, at, gocbcore.OpenStreamOptions{},
		func(log []gocbcore.FailoverEntry, err error) {
			if err == nil {
				at.vbuuid = log[0].VbUUID
			}
			answered <- err
		})
	if err != nil {
		return err
	}
	select {
	case err = <-answered:
		return err
	case <-time.After(timeout):
		operation.Cancel()
		return fmt.Errorf("vbucket %d: no answer", at.number)
	}
}

// vbucket is the position of one stream, and receives its changes.
type vbucket struct {
	pipeline                   *Pipeline
	number                     uint16
	vbuuid                     gocbcore.VbUUID
	seqno                      gocbcore.SeqNo
	snapshotStart, snapshotEnd gocbcore.SeqNo
	ended                      chan error
}

func (v *vbucket) send(seqno uint64, key, value []byte) {
	v.pipeline.topic.Send(v.number, string(key), value)
	v.seqno = gocbcore.SeqNo(seqno)
}

// SnapshotMarker opens a snapshot: a position within one is not complete without its window.
func (v *vbucket) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	v.snapshotStart, v.snapshotEnd = min(gocbcore.SeqNo(m.StartSeqNo), v.seqno), gocbcore.SeqNo(m.EndSeqNo)
}

// Mutation is a document.
func (v *vbucket) Mutation(m gocbcore.DcpMutation) {
	v.send(m.SeqNo, m.Key, append([]byte{}, m.Value...))
}

// Deletion is a tombstone.
func (v *vbucket) Deletion(d gocbcore.DcpDeletion) { v.send(d.SeqNo, d.Key, nil) }

// Expiration is a tombstone as well.
func (v *vbucket) Expiration(e gocbcore.DcpExpiration) { v.send(e.SeqNo, e.Key, nil) }

// SeqNoAdvanced ends a snapshot whose last change is not for this stream.
func (v *vbucket) SeqNoAdvanced(a gocbcore.DcpSeqNoAdvanced) { v.seqno = gocbcore.SeqNo(a.SeqNo) }

// End is the end of the stream.
func (v *vbucket) End(_ gocbcore.DcpStreamEnd, err error) { v.ended <- err }

// The other messages do not concern documents.

func (v *vbucket) CreateCollection(c gocbcore.DcpCollectionCreation) {
	v.seqno = gocbcore.SeqNo(c.SeqNo)
}
func (v *vbucket) DeleteCollection(c gocbcore.DcpCollectionDeletion) {
	v.seqno = gocbcore.SeqNo(c.SeqNo)
}
func (v *vbucket) CreateScope(c gocbcore.DcpScopeCreation)     { v.seqno = gocbcore.SeqNo(c.SeqNo) }
func (v *vbucket) DeleteScope(c gocbcore.DcpScopeDeletion)     { v.seqno = gocbcore.SeqNo(c.SeqNo) }
func (v *vbucket) FlushCollection(gocbcore.DcpCollectionFlush) {}
func (v *vbucket) ModifyCollection(c gocbcore.DcpCollectionModification) {
	v.seqno = gocbcore.SeqNo(c.SeqNo)
}
func (v *vbucket) OSOSnapshot(gocbcore.DcpOSOSnapshot) {}
