import static com.couchbase.client.java.kv.LookupInSpec.count;
import static com.couchbase.client.java.kv.LookupInSpec.exists;
import static com.couchbase.client.java.kv.LookupInSpec.get;
import static com.couchbase.client.java.kv.MutateInSpec.arrayAppend;
import static com.couchbase.client.java.kv.MutateInSpec.arrayPrepend;
import static com.couchbase.client.java.kv.MutateInSpec.increment;
import static com.couchbase.client.java.kv.MutateInSpec.insert;
import static com.couchbase.client.java.kv.MutateInSpec.upsert;

import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.DurabilityImpossibleException;
import com.couchbase.client.core.error.TimeoutException;
import com.couchbase.client.core.error.subdoc.PathExistsException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.core.msg.kv.MutationToken;
import com.couchbase.client.core.service.ServiceType;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.diagnostics.WaitUntilReadyOptions;
import com.couchbase.client.java.json.JsonArray;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.IncrementOptions;
import com.couchbase.client.java.kv.LookupInResult;
import com.couchbase.client.java.kv.MutateInMacro;
import com.couchbase.client.java.kv.MutateInOptions;
import com.couchbase.client.java.kv.MutateInResult;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.MutationState;
import com.couchbase.client.java.kv.PersistTo;
import com.couchbase.client.java.kv.RemoveOptions;
import com.couchbase.client.java.kv.ReplaceOptions;
import com.couchbase.client.java.kv.ReplicateTo;
import com.couchbase.client.java.kv.ScanOptions;
import com.couchbase.client.java.kv.ScanResult;
import com.couchbase.client.java.kv.ScanTerm;
import com.couchbase.client.java.kv.ScanType;
import com.couchbase.client.java.kv.StoreSemantics;
import com.couchbase.client.java.kv.UpsertOptions;
import com.couchbase.client.java.manager.collection.CollectionManager;
import com.couchbase.client.java.transactions.TransactionAttemptContext;
import com.couchbase.client.java.transactions.TransactionGetResult;
import com.couchbase.client.java.transactions.error.TransactionFailedException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import reactor.core.publisher.Flux;

/**
 * Writes and reads with the Java SDK. Each line on standard input is a job: name=value with spaces between. The answer
 * is a line: what the program found, or `failed` and why. See tests/interop/programs.py.
 */
public final class Sdk {
  private static final String LARGE = "x".repeat(2000);

  private final Map<String, String> options;
  private Cluster cluster;
  private Bucket bucket;
  private long count;
  private long sum;

  private Sdk(Map<String, String> options) {
    this.options = options;
  }

  public static void main(String[] arguments) throws Exception {
    System.out.println("started");
    BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
      Map<String, String> options = new HashMap<>();
      for (String argument : line.split(" ")) {
        int equals = argument.indexOf('=');
        options.put(argument.substring(0, equals), argument.substring(equals + 1));
      }
      try {
        System.out.println(new Sdk(options).answer());
      } catch (Throwable error) {
        error.printStackTrace();
        System.out.println("failed " + error.toString().replace('\n', ' '));
      }
    }
    System.exit(0);
  }

  private String answer() throws Exception {
    long begin = System.nanoTime();
    ClusterOptions connecting = ClusterOptions.clusterOptions(options.get("user"), options.get("password"));
    connecting.environment(env -> {
      env.transactionsConfig(config -> config.cleanupConfig(cleanup -> cleanup.cleanupLostAttempts(false)));
      if (options.containsKey("ca")) {
        env.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(options.get("ca"))));
      }
    });
    cluster = Cluster.connect(options.get("url"), connecting);
    try {
      bucket = cluster.bucket(options.get("bucket"));
      Set<ServiceType> services = Set.of(ServiceType.KV, ServiceType.MANAGER);
      bucket.waitUntilReady(
          Duration.ofSeconds(10), WaitUntilReadyOptions.waitUntilReadyOptions().serviceTypes(services));
      double ready = (System.nanoTime() - begin) / 1e9;
      switch (options.get("do")) {
        case "connect" -> { }
        case "documents" -> documents();
        case "impossible" -> impossible();
        case "scan" -> scan();
        case "sink" -> sink();
        case "transactions" -> transactions();
        case "rollback" -> rollback();
        case "conflict" -> conflict();
        default -> throw new IllegalArgumentException(options.get("do"));
      }
      return "ready=%.3f documents=%d checksum=%d".formatted(ready, count, sum);
    } finally {
      cluster.disconnect();
    }
  }

  /** Reads the documents that it has just written, in three ways. */
  private void scan() {
    Collection c = bucket.defaultCollection();
    List<MutationToken> tokens = new ArrayList<>();
    for (int n = 0; n < 100; n++) {
      tokens.add(c.upsert(padded("scan-", n, 2), JsonObject.create().put("n", n)).mutationToken().orElseThrow());
    }
    c.upsert("other", 1);
    MutationState consistent = MutationState.from(tokens.toArray(MutationToken[]::new));
    List<ScanResult> found =
        c.scan(ScanType.prefixScan("scan-"), ScanOptions.scanOptions().consistentWith(consistent)).toList();
    int contents = found.stream().mapToInt(item -> item.contentAsObject().getInt("n")).sum();
    expect(contents == 4950, "scanned documents", contents);
    List<String> ids = ids(c, ScanType.rangeScan(ScanTerm.inclusive("scan-10"), ScanTerm.exclusive("scan-20")));
    expect(ids.size() == 10 && ids.get(0).equals("scan-10") && ids.get(9).equals("scan-19"), "range of keys", ids);
    ids = ids(c, ScanType.samplingScan(7, 5));
    expect(ids.size() == 7, "sample of keys", ids);
    c.remove("other");
    read("_default", "_default", found.stream().map(ScanResult::id).toList());
  }

  private static List<String> ids(Collection c, ScanType kind) {
    return c.scan(kind, ScanOptions.scanOptions().idsOnly(true)).map(ScanResult::id).sorted().toList();
  }

  private void documents() {
    Collection c = bucket.defaultCollection();
    Flux.range(0, 200)
        .flatMap(n -> c.reactive().upsert(padded("doc-", n, 3), JsonObject.create().put("n", n).put("pad", LARGE)))
        .blockLast();
    Flux.range(0, 200).filter(n -> n % 7 == 0).flatMap(n -> c.reactive().remove(padded("doc-", n, 3))).blockLast();
    conditions(c);
    counters(c);
    expiries(c);
    parts(c);
    replicas(c);
    collections();
    List<String> keys = new ArrayList<>(List.of(
        "condition", "locked", "counter", "text", "lasting", "parts", "made", "durable", "observed"));
    for (int n = 0; n < 200; n++) {
      if (n % 7 != 0) {
        keys.add(padded("doc-", n, 3));
      }
    }
    read("_default", "_default", keys);
    keys.clear();
    for (int n = 0; n < 50; n++) {
      keys.add(padded("order-", n, 2));
    }
    read("shop", "order", keys);
  }

  private void conditions(Collection c) {
    MutationResult first = c.insert("condition", 1);
    expect(DocumentExistsException.class, () -> c.insert("condition", 2));
    c.replace("condition", 2, ReplaceOptions.replaceOptions().cas(first.cas()));
    expect(CasMismatchException.class, () -> c.replace(
        "condition", 3, ReplaceOptions.replaceOptions().cas(first.cas())));
    expect(DocumentNotFoundException.class, () -> c.get("missing"));
    c.insert("locked", 1);
    GetResult locked = c.getAndLock("locked", Duration.ofSeconds(15));
    expect(TimeoutException.class, () -> c.upsert(
        "locked", 2, UpsertOptions.upsertOptions().timeout(Duration.ofMillis(50))));
    c.unlock("locked", locked.cas());
    c.upsert("locked", 3);
  }

  private void counters(Collection c) {
    for (int n = 5; n < 8; n++) {
      long found = c.binary().increment("counter", IncrementOptions.incrementOptions().initial(5)).content();
      expect(found == n, "increment", found);
    }
    long found = c.binary().decrement("counter").content();
    expect(found == 6, "decrement", found);
    c.upsert("text", "b".getBytes(), UpsertOptions.upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
    c.binary().append("text", "c".getBytes());
    c.binary().prepend("text", "a".getBytes());
  }

  private void expiries(Collection c) {
    Instant later = Instant.now().plusSeconds(3000);
    GetOptions withExpiry = GetOptions.getOptions().withExpiry(true);
    c.upsert("expiring", 1, UpsertOptions.upsertOptions().expiry(Duration.ofSeconds(1)));
    c.upsert("lasting", Map.of("a", 1), UpsertOptions.upsertOptions().expiry(Duration.ofHours(1)));
    Instant expiry = c.get("lasting", withExpiry).expiryTime().orElseThrow();
    expect(expiry.isAfter(later), "expiry", expiry);
    c.upsert("lasting", Map.of("a", 2), UpsertOptions.upsertOptions().preserveExpiry(true));
    expiry = c.get("lasting", withExpiry).expiryTime().orElseThrow();
    expect(expiry.isAfter(later), "preserved expiry", expiry);
    c.getAndTouch("lasting", Duration.ofHours(2));
    c.touch("lasting", Duration.ofHours(3));
    JsonObject projected = c.get("lasting", GetOptions.getOptions().project("a")).contentAsObject();
    expect(projected.getInt("a") == 2, "projection", projected);
    Instant deadline = Instant.now().plusSeconds(10);
    while (c.exists("expiring").exists()) {
      expect(Instant.now().isBefore(deadline), "expiry of a document", "still there");
    }
  }

  private void parts(Collection c) {
    c.upsert("parts", JsonObject.create()
        .put("a", JsonObject.create().put("b", JsonArray.from(1, 2))).put("n", 5));
    MutateInResult changed = c.mutateIn("parts", List.of(
        upsert("meta.cas", MutateInMacro.CAS).createPath(),
        arrayAppend("a.b", List.of(3)),
        increment("n", 2),
        upsert("new.path", "x").createPath()));
    expect(changed.contentAs(2, Integer.class) == 7, "counter in a document", changed);
    LookupInResult found = c.lookupIn("parts", List.of(
        get("meta.cas").xattr(), get("a.b[2]"), count("a.b"), exists("missing")));
    expect(found.contentAs(1, Integer.class) == 3, "item of an array", found);
    expect(found.contentAs(2, Integer.class) == 3, "length of an array", found);
    expect(!found.exists(3), "path that is missing", found);
    expect(PathExistsException.class, () -> c.mutateIn("parts", List.of(insert("n", 1))));
    c.mutateIn("made", List.of(upsert("x", 1)),
        MutateInOptions.mutateInOptions().storeSemantics(StoreSemantics.UPSERT));
  }

  private void replicas(Collection c) {
    c.upsert("durable", 1, UpsertOptions.upsertOptions().durability(DurabilityLevel.PERSIST_TO_MAJORITY));
    c.upsert("observed", 1, UpsertOptions.upsertOptions().durability(PersistTo.TWO, ReplicateTo.ONE));
    long copies = c.getAllReplicas("observed").filter(one -> one.isReplica()).count();
    expect(copies == 1, "replicas", copies);
    if (options.containsKey("replica_lookup")) {
      copies = c.lookupInAllReplicas("parts", List.of(get("n"))).filter(one -> one.isReplica()).count();
      expect(copies == 1, "lookups in replicas", copies);
    }
  }

  private void collections() {
    CollectionManager manager = bucket.collections();
    manager.createScope("shop");
    manager.createCollection("shop", "order");
    manager.createCollection("shop", "dropped");
    Collection c = bucket.scope("shop").collection("order");
    for (int n = 0; n < 50; n++) {
      c.upsert(padded("order-", n, 2), Map.of("total", n));
    }
    manager.dropCollection("shop", "dropped");
    long left = manager.getAllScopes().stream().filter(scope -> scope.name().equals("shop"))
        .flatMap(scope -> scope.collections().stream()).count();
    expect(left == 1, "collections", left);
  }

  /** Sums up documents that must be there. */
  private void read(String scope, String collection, List<String> keys) {
    Collection c = bucket.scope(scope).collection(collection);
    for (String key : keys) {
      CRC32 checksum = new CRC32();
      checksum.update((scope + "." + collection + "/" + key + "\0").getBytes(StandardCharsets.UTF_8));
      checksum.update(c.get(key).contentAsBytes());
      count++;
      sum += checksum.getValue();
    }
  }

  private void impossible() {
    expect(DurabilityImpossibleException.class, () -> bucket.defaultCollection().upsert(
        "durable", 1, UpsertOptions.upsertOptions().durability(DurabilityLevel.MAJORITY)));
  }

  /** Writes as the sink of the Kafka connector does: whole documents or parts of them, durably, in many threads. */
  private void sink() {
    Collection c = bucket.defaultCollection();
    UpsertOptions durably = UpsertOptions.upsertOptions().durability(DurabilityLevel.MAJORITY);
    MutateInOptions creating = MutateInOptions.mutateInOptions()
        .storeSemantics(StoreSemantics.UPSERT).durability(DurabilityLevel.MAJORITY);
    List<String> keys = new ArrayList<>();
    for (int n = 0; n < 20; n++) {
      keys.add(padded("whole-", n, 2));
      keys.add(padded("parts-", n, 2));
    }
    Flux.range(0, 20).flatMap(n -> Flux.concat(
        c.reactive().upsert(padded("whole-", n, 2), Map.of("n", n), durably).then(),
        c.reactive().upsert(padded("gone-", n, 2), Map.of("n", n)).then(),
        c.reactive().remove(padded("gone-", n, 2), RemoveOptions.removeOptions().durability(DurabilityLevel.MAJORITY))
            .then(),
        c.reactive().mutateIn(padded("parts-", n, 2), List.of(upsert("a.value", n).createPath()), creating).then(),
        c.reactive().mutateIn(padded("parts-", n, 2), List.of(arrayAppend("b.list", List.of(n)).createPath()), creating)
            .then(),
        c.reactive().mutateIn(padded("parts-", n, 2), List.of(arrayPrepend("b.list", List.of(-n)).createPath()), creating)
            .then())).blockLast();
    read("_default", "_default", keys);
  }

  private void transactions() {
    Collection c = bucket.defaultCollection();
    c.upsert("replaced", Map.of("n", 1));
    c.upsert("removed", Map.of("n", 1));
    cluster.transactions().run(transaction -> {
      transaction.replace(transaction.get(c, "replaced"), Map.of("n", 2));
      transaction.insert(c, "inserted", Map.of("n", 3));
      transaction.remove(transaction.get(c, "removed"));
      int own = transaction.get(c, "replaced").contentAsObject().getInt("n");
      expect(own == 2, "own write", own);
      expect(DocumentNotFoundException.class, () -> transaction.get(c, "removed"));
    });
    read("_default", "_default", List.of("replaced", "inserted"));
  }

  private void rollback() {
    Collection c = bucket.defaultCollection();
    c.upsert("kept", Map.of("n", 1));
    expect(TransactionFailedException.class, () -> cluster.transactions().run(transaction -> {
      transaction.replace(transaction.get(c, "kept"), Map.of("n", 2));
      transaction.insert(c, "never", Map.of("n", 3));
      throw new IllegalStateException("roll back");
    }));
    expect(!c.exists("never").exists(), "insert that was rolled back", "still there");
    read("_default", "_default", List.of("kept"));
  }

  /** Lets two transactions increment the same document: the second one meets what the first has staged. */
  private void conflict() {
    Collection c = bucket.defaultCollection();
    c.upsert("shared", Map.of("n", 0));
    CountDownLatch staged = new CountDownLatch(1);
    AtomicInteger attempts = new AtomicInteger();
    CompletableFuture<Void> second = CompletableFuture.runAsync(() -> {
      waitFor(staged, 10_000);
      cluster.transactions().run(transaction -> {
        attempts.incrementAndGet();
        addOne(transaction, c);
      });
    });
    cluster.transactions().run(transaction -> {
      addOne(transaction, c);
      staged.countDown();
      // Long enough for the other one to meet what is staged.
      waitFor(new CountDownLatch(1), 300);
    });
    second.join();
    expect(attempts.get() > 1, "attempts of the second transaction", attempts);
    read("_default", "_default", List.of("shared"));
  }

  private static void waitFor(CountDownLatch latch, long milliseconds) {
    try {
      latch.await(milliseconds, TimeUnit.MILLISECONDS);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static void addOne(TransactionAttemptContext transaction, Collection c) {
    TransactionGetResult shared = transaction.get(c, "shared");
    transaction.replace(shared, Map.of("n", shared.contentAsObject().getInt("n") + 1));
  }

  private static String padded(String name, int number, int width) {
    return name + ("%0" + width + "d").formatted(number);
  }

  private static void expect(boolean holds, String what, Object found) {
    if (!holds) {
      throw new IllegalStateException(what + ": found " + found);
    }
  }

  private static void expect(Class<? extends Throwable> kind, Runnable action) {
    try {
      action.run();
    } catch (Throwable error) {
      if (kind.isInstance(error)) {
        return;
      }
      throw error;
    }
    throw new IllegalStateException("found no " + kind.getSimpleName());
  }
}
