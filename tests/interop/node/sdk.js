// Writes and reads with the Node.js SDK. Each line on standard input is a job: name=value with spaces between. The answer
// is a line: what the program found, or `failed` and why. See tests/interop/programs.py.
'use strict'

const couchbase = require('couchbase')
const readline = require('node:readline')
const { setTimeout: sleep } = require('node:timers/promises')

const LARGE = 'x'.repeat(2000)
const numbers = (count) => [...Array(count).keys()]
const padded = (name, number, width) => name + String(number).padStart(width, '0')

// The crc32 of node:zlib is there since Node.js 20.15.
const TABLE = numbers(256).map((byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1
  return byte >>> 0
})
const crc32 = (data) => {
  let crc = 0xffffffff
  for (const byte of data) crc = (crc >>> 8) ^ TABLE[(crc ^ byte) & 0xff]
  return (crc ^ 0xffffffff) >>> 0
}

// Leaves values as they are stored.
const RAW = { encode: (value) => [value, 3 << 24], decode: (value) => value }
const BINARY = { encode: (value) => [value, 3 << 24], decode: (value) => value }

function expect(holds, what, found) {
  if (!holds) throw new Error(`${what}: found ${JSON.stringify(found)}`)
}

async function expectError(kinds, what, action) {
  try {
    await action()
  } catch (error) {
    if (kinds.some((kind) => error instanceof kind)) return
    throw error
  }
  throw new Error(`${what}: found no error`)
}

class Job {
  constructor(options) {
    this.options = options
    this.count = 0
    this.sum = 0
  }

  async answer() {
    const begin = performance.now()
    this.cluster = await couchbase.connect(this.options.url, {
      username: this.options.user,
      password: this.options.password,
      ...(this.options.ca && { security: { trustStorePath: this.options.ca } }),
    })
    this.bucket = this.cluster.bucket(this.options.bucket)
    // There is no waitUntilReady: the first operation waits.
    await this.bucket.defaultCollection().exists('ready')
    const ready = (performance.now() - begin) / 1000
    try {
      await this[this.options.do]()
    } finally {
      await this.cluster.close()
    }
    return `ready=${ready.toFixed(3)} documents=${this.count} checksum=${this.sum}`
  }

  async connect() {}

  // Reads the documents that it has just written, in three ways.
  async scan() {
    const c = this.bucket.defaultCollection()
    const written = await Promise.all(numbers(100).map((n) => c.upsert(padded('scan-', n, 2), { n })))
    await c.upsert('other', 1)
    const consistentWith = new couchbase.MutationState(...written.map((one) => one.token))
    const found = await c.scan(new couchbase.PrefixScan('scan-'), { consistentWith })
    const contents = found.reduce((sum, item) => sum + item.content.n, 0)
    expect(contents === 4950, 'scanned documents', contents)
    const idsOf = async (kind) => (await c.scan(kind, { idsOnly: true })).map((item) => item.id).sort()
    const ends = [new couchbase.ScanTerm('scan-10'), new couchbase.ScanTerm('scan-20', true)]
    let ids = await idsOf(new couchbase.RangeScan(...ends))
    expect(ids.length === 10 && ids[0] === 'scan-10' && ids[9] === 'scan-19', 'range of keys', ids)
    ids = await idsOf(new couchbase.SamplingScan(7, 5))
    expect(ids.length === 7, 'sample of keys', ids)
    await c.remove('other')
    await this.read('_default', '_default', found.map((item) => item.id))
  }

  async documents() {
    const c = this.bucket.defaultCollection()
    await Promise.all(numbers(200).map((n) => c.upsert(padded('doc-', n, 3), { n, pad: LARGE })))
    await Promise.all(numbers(200).filter((n) => n % 7 === 0).map((n) => c.remove(padded('doc-', n, 3))))
    await this.conditions(c)
    await this.counters(c)
    await this.expiries(c)
    await this.parts(c)
    await this.replicas(c)
    await this.collections()
    const names = ['condition', 'locked', 'counter', 'text', 'lasting', 'parts', 'made', 'durable', 'observed']
    const kept = numbers(200).filter((n) => n % 7).map((n) => padded('doc-', n, 3))
    await this.read('_default', '_default', [...names, ...kept])
    await this.read('shop', 'order', numbers(50).map((n) => padded('order-', n, 2)))
  }

  async conditions(c) {
    const first = await c.insert('condition', 1)
    await expectError([couchbase.DocumentExistsError], 'insert of a document that exists', () => c.insert('condition', 2))
    await c.replace('condition', 2, { cas: first.cas })
    await expectError([couchbase.CasMismatchError], 'replace with an old CAS', () =>
      c.replace('condition', 3, { cas: first.cas })
    )
    await expectError([couchbase.DocumentNotFoundError], 'get of a missing document', () => c.get('missing'))
    await c.insert('locked', 1)
    const locked = await c.getAndLock('locked', 15)
    await expectError([couchbase.DocumentLockedError, couchbase.TimeoutError], 'write of a locked document', () =>
      c.upsert('locked', 2, { timeout: 50 })
    )
    await c.unlock('locked', locked.cas)
    await c.upsert('locked', 3)
  }

  async counters(c) {
    const found = []
    for (let n = 0; n < 3; n++) found.push((await c.binary().increment('counter', 1, { initial: 5 })).value)
    expect(found.join() === '5,6,7', 'increments', found)
    expect((await c.binary().decrement('counter', 1)).value === 6, 'decrement', found)
    await c.upsert('text', Buffer.from('b'), { transcoder: BINARY })
    await c.binary().append('text', Buffer.from('c'))
    await c.binary().prepend('text', Buffer.from('a'))
  }

  async expiries(c) {
    const later = Date.now() / 1000 + 3000
    await c.upsert('expiring', 1, { expiry: 1 })
    await c.upsert('lasting', { a: 1 }, { expiry: 3600 })
    expect((await c.get('lasting', { withExpiry: true })).expiryTime > later, 'expiry')
    await c.upsert('lasting', { a: 2 }, { preserveExpiry: true })
    expect((await c.get('lasting', { withExpiry: true })).expiryTime > later, 'preserved expiry')
    await c.getAndTouch('lasting', 7200)
    await c.touch('lasting', 10800)
    const projected = (await c.get('lasting', { project: ['a'] })).content
    expect(projected.a === 2, 'projection', projected)
    const deadline = Date.now() + 10000
    while ((await c.exists('expiring')).exists) expect(Date.now() < deadline, 'expiry of a document', 'still there')
  }

  async parts(c) {
    const { LookupInSpec, MutateInSpec, MutateInMacro } = couchbase
    await c.upsert('parts', { a: { b: [1, 2] }, n: 5 })
    const changed = await c.mutateIn('parts', [
      MutateInSpec.upsert('meta.cas', MutateInMacro.Cas, { createPath: true, xattr: true }),
      MutateInSpec.arrayAppend('a.b', 3),
      MutateInSpec.increment('n', 2),
      MutateInSpec.upsert('new.path', 'x', { createPath: true }),
    ])
    expect(changed.content[2].value === 7, 'counter in a document', changed.content)
    const found = await c.lookupIn('parts', [
      LookupInSpec.get('meta.cas', { xattr: true }),
      LookupInSpec.get('a.b[2]'),
      LookupInSpec.count('a.b'),
      LookupInSpec.exists('missing'),
    ])
    const values = found.content.slice(1).map((one) => one.value)
    expect(values.join() === '3,3,false', 'lookup in a document', values)
    await expectError([couchbase.PathExistsError], 'insert of a path that exists', () =>
      c.mutateIn('parts', [MutateInSpec.insert('n', 1)])
    )
    const storeSemantics = couchbase.StoreSemantics.Upsert
    await c.mutateIn('made', [MutateInSpec.upsert('x', 1)], { storeSemantics })
  }

  async replicas(c) {
    await c.upsert('durable', 1, { durabilityLevel: couchbase.DurabilityLevel.PersistToMajority })
    await c.upsert('observed', 1, { durabilityPersistTo: 1, durabilityReplicateTo: 1 })
    const copies = (await c.getAllReplicas('observed')).map((one) => one.isReplica)
    expect(copies.sort().join() === 'false,true', 'copies', copies)
    if (this.options.replica_lookup) {
      const found = (await c.lookupInAllReplicas('parts', [couchbase.LookupInSpec.get('n')])).map((one) => one.isReplica)
      expect(found.sort().join() === 'false,true', 'lookups in copies', found)
    }
  }

  async collections() {
    const manager = this.bucket.collections()
    await manager.createScope('shop')
    await manager.createCollection('order', 'shop')
    await manager.createCollection('dropped', 'shop')
    const c = this.bucket.scope('shop').collection('order')
    await Promise.all(numbers(50).map((n) => c.upsert(padded('order-', n, 2), { total: n })))
    await manager.dropCollection('dropped', 'shop')
    const shop = (await manager.getAllScopes()).find((scope) => scope.name === 'shop')
    expect(shop.collections.map((one) => one.name).join() === 'order', 'collections', shop)
  }

  // Sums up documents that must be there.
  async read(scope, collection, keys) {
    const c = this.bucket.scope(scope).collection(collection)
    for (const key of keys) {
      const { content } = await c.get(key, { transcoder: RAW })
      this.count++
      this.sum += crc32(Buffer.concat([Buffer.from(`${scope}.${collection}/${key}\0`), content]))
    }
  }

  async impossible() {
    const durabilityLevel = couchbase.DurabilityLevel.Majority
    await expectError([couchbase.DurabilityImpossibleError], 'durable write with too few copies', () =>
      this.bucket.defaultCollection().upsert('durable', 1, { durabilityLevel })
    )
  }

  async transactions() {
    const c = this.bucket.defaultCollection()
    for (const key of ['replaced', 'removed']) await c.upsert(key, { n: 1 })
    await this.cluster.transactions().run(async (t) => {
      await t.replace(await t.get(c, 'replaced'), { n: 2 })
      await t.insert(c, 'inserted', { n: 3 })
      await t.remove(await t.get(c, 'removed'))
      const own = (await t.get(c, 'replaced')).content
      expect(own.n === 2, 'own write', own)
      await expectError([couchbase.DocumentNotFoundError], 'own removal', () => t.get(c, 'removed'))
    })
    await this.read('_default', '_default', ['replaced', 'inserted'])
  }

  async rollback() {
    const c = this.bucket.defaultCollection()
    await c.upsert('kept', { n: 1 })
    await expectError([couchbase.TransactionFailedError], 'rollback', () =>
      this.cluster.transactions().run(async (t) => {
        await t.replace(await t.get(c, 'kept'), { n: 2 })
        await t.insert(c, 'never', { n: 3 })
        throw new Error('roll back')
      })
    )
    expect(!(await c.exists('never')).exists, 'insert that was rolled back', 'still there')
    await this.read('_default', '_default', ['kept'])
  }

  // Lets two transactions increment the same document: the second one meets what the first has staged.
  async conflict() {
    const c = this.bucket.defaultCollection()
    await c.upsert('shared', { n: 0 })
    const increment = async (t) => {
      const shared = await t.get(c, 'shared')
      await t.replace(shared, { n: shared.content.n + 1 })
    }
    let attempts = 0
    let stage
    const staged = new Promise((resolve) => (stage = resolve))
    const first = this.cluster.transactions().run(async (t) => {
      await increment(t)
      stage()
      await sleep(300)
    })
    await staged
    // Unlike most SDKs this one does not attempt again after a conflict within the function.
    for (let committed = false; !committed; ) {
      try {
        await this.cluster.transactions().run(async (t) => {
          attempts++
          await increment(t)
        })
        committed = true
      } catch (error) {
        if (!(error instanceof couchbase.TransactionFailedError)) throw error
      }
    }
    await first
    expect(attempts > 1, 'attempts of the second transaction', attempts)
    await this.read('_default', '_default', ['shared'])
  }
}

async function main() {
  console.log('started')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const options = Object.fromEntries(line.split(' ').map((one) => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1)]))
    try {
      console.log(await new Job(options).answer())
    } catch (error) {
      console.log('failed ' + String(error.stack || error).replaceAll('\n', ' '))
    }
  }
}

main()
