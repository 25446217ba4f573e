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
import com.couchbase.client.dcp.highlevel.internal.CollectionIdAndKey;
import com.couchbase.client.dcp.message.DcpDeletionMessage;
import com.couchbase.client.dcp.message.DcpExpirationMessage;
import com.couchbase.client.dcp.message.DcpMutationMessage;
import com.couchbase.client.dcp.message.DcpSeqnoAdvancedRequest;
import com.couchbase.client.dcp.message.DcpSnapshotMarkerRequest;
import com.couchbase.client.dcp.message.DcpSystemEventRequest;
import com.couchbase.client.dcp.message.MessageUtil;
import com.couchbase.client.dcp.message.RollbackMessage;
import com.couchbase.client.dcp.message.StreamFlag;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;

/**
 * Follows one bucket after the other with java-dcp-client. It answers each line on standard input with one: `start` and
 * options, `state` (the number of documents, and the sum of their checksums), `stop`. It ends with its standard input.
 *
 * <p>Options: url, user, password, bucket, and if they are given: ca (PEM file), window (bytes), snappy, mitigate (ms),
 * collection (scope.name of the only one), low (the client's low-level interface, which hands out messages), kafka
 * (the settings of the Kafka connector).
 */
public final class Consume implements DatabaseChangeListener {
  private record Version(long seqno, String key, byte[] value) {}

  private Client client;
  private final Map<Integer, List<Version>> versions = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    System.out.println("started");
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Consume consumer = null;
    for (String line = questions.readLine(); line != null; line = questions.readLine()) {
      if (line.startsWith("start ")) {
        consumer = new Consume();
        consumer.start(line.substring(6));
        System.out.println("streaming");
      } else if (line.equals("state")) {
        System.out.println(consumer.state());
      } else if (line.equals("stop")) {
        consumer.client.disconnect().block(Duration.ofSeconds(10));
        System.out.println("stopped");
      }
    }
    System.exit(0);
  }

  private void start(String arguments) {
    Map<String, String> options = new HashMap<>();
    for (String argument : arguments.split(" ")) {
      int equals = argument.indexOf('=');
      options.put(argument.substring(0, equals), argument.substring(equals + 1));
    }
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
    if (options.containsKey("collection")) {
      builder.collectionNames(options.get("collection"));
    }
    if (options.containsKey("kafka")) {
      builder.optionalControlParam("change_streams", true)
          .optionalStreamFlags(Set.of(StreamFlag.IGNORE_PURGED_TOMBSTONES))
          .xattrs(true)
          .mitigateRollbacks(100, TimeUnit.MILLISECONDS)
          .bufferAckWatermark(60);
    }
    client = builder.build();
    if (options.containsKey("low")) {
      handleMessages();
    } else {
      client.listener(this, FlowControlMode.AUTOMATIC);
    }
    client.connect().block(Duration.ofSeconds(30));
    client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block(Duration.ofSeconds(30));
    client.startStreaming().block(Duration.ofSeconds(30));
  }

  /** Takes messages as they arrive. Those that count for flow control have to be acknowledged, all to be released. */
  private void handleMessages() {
    client.controlEventHandler((flow, event) -> {
      try {
        if (RollbackMessage.is(event)) {
          int vbucket = RollbackMessage.vbucket(event);
          long seqno = RollbackMessage.seqno(event);
          forget(vbucket, seqno);
          client.rollbackAndRestartStream(vbucket, seqno).subscribe();
        } else if (DcpSnapshotMarkerRequest.is(event)
            || DcpSeqnoAdvancedRequest.is(event)
            || DcpSystemEventRequest.is(event)) {
          flow.ack(event);
        }
      } finally {
        event.release();
      }
    });
    client.dataEventHandler((flow, event) -> {
      try {
        CollectionIdAndKey key = MessageUtil.getCollectionIdAndKey(event, true);
        String name = key.collectionId() + "/" + key.key();
        int vbucket = MessageUtil.getVbucket(event);
        if (DcpMutationMessage.is(event)) {
          keep(vbucket, DcpMutationMessage.bySeqno(event), name, MessageUtil.getContentAsByteArray(event));
        } else if (DcpDeletionMessage.is(event)) {
          keep(vbucket, DcpDeletionMessage.bySeqno(event), name, null);
        } else if (DcpExpirationMessage.is(event)) {
          keep(vbucket, DcpExpirationMessage.bySeqno(event), name, null);
        }
        flow.ack(event);
      } finally {
        event.release();
      }
    });
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
    forget(rollback.getVbucket(), rollback.getSeqno());
    rollback.resume();
  }

  @Override
  public void onFailure(StreamFailure failure) {
    System.err.println("failure: " + failure);
  }

  private void keep(DocumentChange change, byte[] value) {
    String name = change.getCollection().id() + "/" + change.getKey();
    keep(change.getVbucket(), change.getOffset().getSeqno(), name, value);
  }

  private synchronized void keep(int vbucket, long seqno, String name, byte[] value) {
    versions.computeIfAbsent(vbucket, number -> new ArrayList<>()).add(new Version(seqno, name, value));
  }

  private synchronized void forget(int vbucket, long seqno) {
    versions.getOrDefault(vbucket, new ArrayList<>()).removeIf(one -> one.seqno() > seqno);
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
