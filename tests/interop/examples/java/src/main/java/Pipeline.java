import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import java.time.Duration;

/** Copies the changes of a bucket into a topic, as a Kafka connector does. */
public final class Pipeline implements DatabaseChangeListener, AutoCloseable {
  /** Receives the records. A record without a value is a tombstone. */
  public interface Topic {
    void send(int vbucket, long seqno, String key, byte[] value);

    /** Withdraw the records of a vbucket above a seqno: a failover has lost their changes. */
    void withdraw(int vbucket, long seqno);
  }

  private final Topic topic;
  private final Client client;

  public Pipeline(String connectionString, String user, String password, String bucket, Topic topic) {
    this.topic = topic;
    client = Client.builder()
        .connectionString(connectionString)
        .credentials(user, password)
        .bucket(bucket)
        .collectionsAware(true)
        .configRefreshInterval(Duration.ofSeconds(1))
        .flowControl(1 << 20)
        .build();
    client.listener(this, FlowControlMode.AUTOMATIC);
  }

  public void start() {
    client.connect().block(Duration.ofSeconds(30));
    client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block(Duration.ofSeconds(30));
    client.startStreaming().block(Duration.ofSeconds(30));
  }

  @Override
  public void onMutation(Mutation mutation) {
    send(mutation, mutation.getContent());
  }

  @Override
  public void onDeletion(Deletion deletion) {
    send(deletion, null);
  }

  @Override
  public void onRollback(Rollback rollback) {
    topic.withdraw(rollback.getVbucket(), rollback.getSeqno());
    rollback.resume();
  }

  @Override
  public void onFailure(StreamFailure failure) {
    System.err.println("stream of vbucket " + failure.getVbucket() + ": " + failure.getCause());
  }

  private void send(DocumentChange change, byte[] value) {
    topic.send(change.getVbucket(), change.getOffset().getSeqno(), change.getKey(), value);
  }

  @Override
  public void close() {
    client.disconnect().block(Duration.ofSeconds(10));
  }
}
