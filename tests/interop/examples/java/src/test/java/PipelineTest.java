import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
final class PipelineTest {
  private DcpServe cluster;
  private final Records records = new Records();

  @BeforeEach
  void startCluster() throws IOException {
    cluster = new DcpServe("--nodes", "3", "--replicas", "1", "--vbuckets", "16");
  }

  @AfterEach
  void stopCluster() throws InterruptedException {
    cluster.close();
  }

  private Pipeline start() {
    Pipeline pipeline = new Pipeline(
        cluster.connectionString(), cluster.get("username"), cluster.get("password"), "default", records);
    pipeline.start();
    return pipeline;
  }

  @Test
  void documentsAndDeletionsAreCopied() throws Exception {
    for (int number = 0; number < 100; number++) {
      cluster.run("upsert", Map.of("key", "order-" + number, "value", Map.of("total", number)));
    }
    try (Pipeline pipeline = start()) {
      cluster.run("delete", Map.of("key", "order-7"));
      awaitTruth();
      assertTrue(records.hasTombstone("order-7"));
    }
  }

  @Test
  void lostWritesOfAFailoverAreWithdrawn() throws Exception {
    cluster.run("load", Map.of("count", 500));
    try (Pipeline pipeline = start()) {
      awaitTruth();
      for (int number = 0; number < 30; number++) {
        cluster.run("upsert", Map.of("key", "late-" + number, "value", "{}"));
      }
      awaitTruth();
      cluster.run("failover", Map.of("node", 0, "lose", 3));
      awaitTruth();
      assertEquals(527, records.state().size());
      assertTrue(records.withdrawn() > 0);
    }
  }

  @Test
  void connectionsThatBreakAreOpenedAgain() throws Exception {
    cluster.run("load", Map.of("count", 2000));
    cluster.run("fault", Map.of("name", "cut", "streamed", "10k", "times", 3));
    try (Pipeline pipeline = start()) {
      awaitTruth();
      assertEquals(3, cluster.run("faults", Map.of()).get(0).get("hits").asInt());
    }
  }

  @Test
  void aRefusalSaysWhatIsExpected() {
    IOException refusal = assertThrows(IOException.class, () -> cluster.run("failover", Map.of("node", 9)));
    assertEquals("failover: node: expected 0 to 2, found 9", refusal.getMessage());
  }

  /** Wait until the topic has what a correct consumer must end up with. */
  private void awaitTruth() throws Exception {
    Map<String, String> truth = new HashMap<>();
    cluster.run("truth", Map.of()).forEach(one -> truth.put(one.get("key").asText(), one.get("value").asText()));
    while (!truth.equals(records.state())) {
      Thread.sleep(20);
    }
  }

  /** A topic in memory. */
  private static final class Records implements Pipeline.Topic {
    private record Entry(int vbucket, long seqno, String key, byte[] value) {}

    private final List<Entry> entries = new ArrayList<>();
    private int withdrawn;

    @Override
    public synchronized void send(int vbucket, long seqno, String key, byte[] value) {
      entries.add(new Entry(vbucket, seqno, key, value));
    }

    @Override
    public synchronized void withdraw(int vbucket, long seqno) {
      int before = entries.size();
      entries.removeIf(entry -> entry.vbucket() == vbucket && entry.seqno() > seqno);
      withdrawn += before - entries.size();
    }

    synchronized int withdrawn() {
      return withdrawn;
    }

    synchronized boolean hasTombstone(String key) {
      return entries.stream().anyMatch(entry -> entry.key().equals(key) && entry.value() == null);
    }

    /** The newest value of each key, as compaction leaves it. */
    synchronized Map<String, String> state() {
      Map<String, String> newest = new HashMap<>();
      for (Entry entry : entries) {
        if (entry.value() == null) {
          newest.remove(entry.key());
        } else {
          newest.put(entry.key(), new String(entry.value(), StandardCharsets.UTF_8));
        }
      }
      return newest;
    }
  }
}
