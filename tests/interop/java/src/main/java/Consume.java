import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;

/**
 * Follows a bucket with java-dcp-client. For each line on standard input it prints the number of documents, and the sum
 * of their checksums. It ends with its standard input.
 *
 * <p>Options: url, user, password, bucket, and if they are given: ca (PEM file), window (bytes), snappy, mitigate (ms).
 */
public final class Consume implements DatabaseChangeListener {
  private record Version(long seqno, String key, byte[] value) {}

  private final Map<Integer, List<Version>> versions = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (String argument : arguments) {
      int equals = argument.indexOf('=');
      options.put(argument.substring(0, equals), argument.substring(equals + 1));
    }
    Consume consumer = new Consume();
    Client.Builder builder = Client.builder()
        .connectionString(options.get("url"))
        .credentials(options.get("user"), options.get("password"))
        .bucket(options.get("bucket"))
        .userAgent("interop", "1")
        .collectionsAware(true)
        .bootstrapTimeout(Duration.ofSeconds(20))
        .configRefreshInterval(Duration.ofSeconds(1))
        .compression(options.containsKey("snappy") ? CompressionMode.ENABLED : CompressionMode.DISABLED)
        .flowControl(Integer.parseInt(options.getOrDefault("window", "1000000")));
    if (options.containsKey("ca")) {
      builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(options.get("ca"))));
    }
    if (options.containsKey("mitigate")) {
      builder.mitigateRollbacks(Long.parseLong(options.get("mitigate")), TimeUnit.MILLISECONDS);
    }
    Client client = builder.build();
    client.listener(consumer, FlowControlMode.AUTOMATIC);
    client.connect().block(Duration.ofSeconds(30));
    client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block(Duration.ofSeconds(30));
    client.startStreaming().block(Duration.ofSeconds(30));
    System.out.println("streaming");
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    while (questions.readLine() != null) {
      System.out.println(consumer.state());
    }
    client.disconnect().block(Duration.ofSeconds(10));
    System.exit(0);
  }

  @Override
  public synchronized void onMutation(Mutation mutation) {
    keep(mutation, mutation.getContent());
  }

  @Override
  public synchronized void onDeletion(Deletion deletion) {
    keep(deletion, null);
  }

  @Override
  public synchronized void onRollback(Rollback rollback) {
    versions.getOrDefault(rollback.getVbucket(), new ArrayList<>()).removeIf(one -> one.seqno() > rollback.getSeqno());
    rollback.resume();
  }

  @Override
  public void onFailure(StreamFailure failure) {
    System.err.println("failure: " + failure);
  }

  private void keep(DocumentChange change, byte[] value) {
    versions.computeIfAbsent(change.getVbucket(), vbucket -> new ArrayList<>())
        .add(new Version(change.getOffset().getSeqno(), change.getCollection().id() + "/" + change.getKey(), value));
  }

  private synchronized String state() {
    long count = 0;
    long sum = 0;
    for (List<Version> all : versions.values()) {
      Map<String, Version> newest = new HashMap<>();
      for (Version one : all) {
        newest.merge(one.key(), one, (before, after) -> after.seqno() >= before.seqno() ? after : before);
      }
      for (Version one : newest.values()) {
        if (one.value() != null) {
          CRC32 checksum = new CRC32();
          checksum.update(one.key().getBytes(StandardCharsets.UTF_8));
          checksum.update(0);
          checksum.update(one.value());
          count++;
          sum += checksum.getValue();
        }
      }
    }
    return count + " " + sum;
  }
}
