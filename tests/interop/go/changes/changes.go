// Package changes keeps the documents of streams of gocbcore.
package changes

import (
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/golang/snappy"

	"interop/program"
)

type version struct {
	seqno uint64
	value []byte // nil for a deletion
}

// Documents observes streams: it has the newest version of each document.
type Documents struct {
	mutex  sync.Mutex
	newest map[string]version
	// Out-of-order snapshots that were completed.
	outOfOrder int
	onEnd      func(error)
}

// NewDocuments returns an observer that passes on why streams end.
func NewDocuments(onEnd func(error)) *Documents {
	return &Documents{newest: map[string]version{}, onEnd: onEnd}
}

// State returns the number of documents, by `collection id/key`, that are counted, and the sum of their checksums.
func (d *Documents) State(counts func(name string) bool) (count int, sum uint64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for name, one := range d.newest {
		if one.value != nil && counts(name) {
			count++
			sum += uint64(crc32.ChecksumIEEE(append([]byte(name+"\x00"), one.value...)))
		}
	}
	return count, sum
}

// OutOfOrder returns the number of out-of-order snapshots.
func (d *Documents) OutOfOrder() int {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.outOfOrder
}

func (d *Documents) keep(collection uint32, key []byte, seqno uint64, value []byte) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	name := fmt.Sprintf("%d/%s", collection, key)
	if seqno >= d.newest[name].seqno {
		d.newest[name] = version{seqno, value}
	}
}

func (d *Documents) Mutation(m gocbcore.DcpMutation) {
	value := append([]byte{}, m.Value...)
	if m.Datatype&uint8(memd.DatatypeFlagCompressed) != 0 {
		inflated, err := snappy.Decode(nil, value)
		program.Check(err)
		value = inflated
	}
	d.keep(m.CollectionID, m.Key, m.SeqNo, value)
}

func (d *Documents) OSOSnapshot(snapshot gocbcore.DcpOSOSnapshot) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if snapshot.SnapshotType == 2 {
		d.outOfOrder++
	}
}

func (d *Documents) Deletion(m gocbcore.DcpDeletion)                     { d.keep(m.CollectionID, m.Key, m.SeqNo, nil) }
func (d *Documents) Expiration(m gocbcore.DcpExpiration)                 { d.keep(m.CollectionID, m.Key, m.SeqNo, nil) }
func (d *Documents) End(_ gocbcore.DcpStreamEnd, err error)              { d.onEnd(err) }
func (d *Documents) SnapshotMarker(gocbcore.DcpSnapshotMarker)           {}
func (d *Documents) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (d *Documents) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (d *Documents) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (d *Documents) CreateScope(gocbcore.DcpScopeCreation)               {}
func (d *Documents) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (d *Documents) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (d *Documents) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced)             {}

// Security returns how to log in, and whom to trust.
func Security(options map[string]string) gocbcore.SecurityConfig {
	security := gocbcore.SecurityConfig{
		Auth: gocbcore.PasswordAuthProvider{Username: options["user"], Password: options["password"]}}
	if roots := program.Roots(options); roots != nil {
		security.UseTLS = true
		security.TLSRootCAProvider = func() *x509.CertPool { return roots }
	}
	return security
}

// Wait calls a function that begins something, and waits for the error that it passes on in the end.
func Wait(begin func(done func(error)) (gocbcore.PendingOp, error)) error {
	result := make(chan error, 1)
	_, err := begin(func(err error) { result <- err })
	if err != nil {
		return err
	}
	return <-result
}
