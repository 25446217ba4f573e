import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.events.StreamEndEvent;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.message.DcpMutationMessage;
import com.couchbase.client.dcp.message.DcpSeqnoAdvancedRequest;
import com.couchbase.client.dcp.message.DcpSnapshotMarkerRequest;
import com.couchbase.client.dcp.message.DcpSystemEventRequest;
import com.couchbase.client.dcp.message.MessageUtil;
import com.couchbase.client.dcp.message.StreamEndReason;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;

/**
 * Reads a bucket with java-dcp-client from its beginning to now. Prints `connected`, then the number of rows and the
 * bytes of their values. Ends when standard input is closed.
 *
 * <p>Arguments: url=, user=, password=, and if they are given: ca= (PEM file), snappy=, streams=off (connect only),
 * buffers= (the client's low-level interface, which hands out buffers instead of objects).
 */
public final class Consume {
  private static final int WINDOW = 20_000_000;

  private final LongAdder rows = new LongAdder();
  private final LongAdder bytes = new LongAdder();
  private final Map<String, String> options = new HashMap<>();
  private CountDownLatch open = new CountDownLatch(0);
  private Client client;

  public static void main(String[] arguments) throws Exception {
    new Consume().run(arguments);
    System.exit(0);
  }

  private void run(String[] arguments) throws Exception {
    for (String argument : arguments) {
      int equals = argument.indexOf('=');
      options.put(argument.substring(0, equals), argument.substring(equals + 1));
    }
    Client.Builder builder = Client.builder()
        .connectionString(options.get("url"))
        .credentials(options.get("user"), options.get("password"))
        .bucket("default")
        .userAgent("peers", "1")
        .collectionsAware(true)
        .compression(options.containsKey("snappy") ? CompressionMode.ENABLED : CompressionMode.DISABLED)
        .flowControl(WINDOW);
    if (options.containsKey("ca")) {
      builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(options.get("ca"))));
    }
    client = builder.build();
    if (options.containsKey("buffers")) {
      handleBuffers();
    } else {
      client.listener(new Objects(), FlowControlMode.AUTOMATIC);
    }
    client.connect().block(Duration.ofSeconds(60));
    System.out.println("connected");
    if (!options.containsKey("streams")) {
      open = new CountDownLatch(client.numPartitions());
      client.initializeState(StreamFrom.BEGINNING, StreamTo.NOW).block(Duration.ofSeconds(60));
      client.startStreaming().block(Duration.ofSeconds(60));
      open.await();
    }
    System.out.println(rows.sum() + " " + bytes.sum());
    System.in.readAllBytes();
  }

  private void ended(int vbucket, StreamEndReason reason) {
    if (reason != StreamEndReason.OK) {
      throw failed("vbucket " + vbucket + " ended: " + reason);
    }
    open.countDown();
  }

  private static Error failed(String why) {
    System.err.println(why);
    Runtime.getRuntime().halt(1);
    return new AssertionError(why);
  }

  /** The interface for applications: an object for each change, on a thread of its own. */
  private final class Objects implements DatabaseChangeListener {
    @Override
    public void onMutation(Mutation mutation) {
      rows.increment();
      bytes.add(mutation.getContent().length);
    }

    @Override
    public void onStreamEnd(StreamEnd end) {
      ended(end.getVbucket(), end.getReason());
    }

    @Override
    public void onFailure(StreamFailure failure) {
      throw failed(failure.toString());
    }
  }

  /** The low-level interface, on the network's thread. A value is copied only if it has to be inflated. */
  private void handleBuffers() {
    boolean inflates = options.containsKey("snappy");
    client.controlEventHandler((flow, event) -> {
      if (DcpSnapshotMarkerRequest.is(event)
          || DcpSeqnoAdvancedRequest.is(event)
          || DcpSystemEventRequest.is(event)) {
        flow.ack(event);
      }
      event.release();
    });
    client.dataEventHandler((flow, event) -> {
      if (DcpMutationMessage.is(event)) {
        rows.increment();
        bytes.add(inflates
            ? MessageUtil.getContentAsByteArray(event).length
            : MessageUtil.getRawContent(event).readableBytes());
      }
      flow.ack(event);
      event.release();
    });
    client.systemEventHandler(event -> {
      if (event instanceof StreamEndEvent end) {
        ended(end.partition(), end.reason());
      }
    });
  }
}
