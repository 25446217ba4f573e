import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/** An embedded cluster for one test: `dcp serve --json` as a process. */
final class DcpServe implements AutoCloseable {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final Process process;
  private final HttpClient http = HttpClient.newHttpClient();
  /** The first line of its output: url, control_url, username, password, addresses, and more. */
  final JsonNode ready;

  DcpServe(String... options) throws IOException {
    List<String> command = new ArrayList<>(List.of("dcp", "serve", "--json"));
    command.addAll(List.of(options));
    process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
    String line = output.readLine();
    if (line == null) {
      throw new IOException("dcp serve ended: its standard error says why");
    }
    ready = JSON.readTree(line);
    // Counters follow. A pipe that nobody reads would fill up.
    Thread reader = new Thread(() -> output.lines().forEach(counters -> {}));
    reader.setDaemon(true);
    reader.start();
  }

  String get(String name) {
    return ready.get(name).asText();
  }

  /** Hosts and ports, without user and bucket. */
  String connectionString() {
    List<String> addresses = new ArrayList<>();
    ready.get("addresses").forEach(address -> addresses.add(address.asText()));
    return "couchbase://" + String.join(",", addresses);
  }

  /** Run an operation of the cluster, such as failover, and return its result. */
  JsonNode run(String operation, Map<String, ?> arguments) throws IOException, InterruptedException {
    String login = get("username") + ":" + get("password");
    HttpRequest request = HttpRequest.newBuilder(URI.create(get("control_url") + "/" + operation))
        .header("Authorization", "Basic " + Base64.getEncoder().encodeToString(login.getBytes(StandardCharsets.UTF_8)))
        .header("Content-Type", "application/json")
        .POST(HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(arguments)))
        .build();
    HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
    JsonNode answer = JSON.readTree(response.body());
    if (response.statusCode() != 200) {
      throw new IOException(operation + ": " + answer.get("error").asText());
    }
    return answer.get("result");
  }

  @Override
  public void close() throws InterruptedException {
    process.destroy();
    process.waitFor();
  }
}
