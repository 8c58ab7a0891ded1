// One node of OpenSearch with HTTP on a free port of 127.0.0.1, until standard input ends.
// Argument: a folder for its data.

import java.util.Collections;
import java.util.List;
import org.opensearch.common.settings.Settings;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.transport.Netty4Plugin;

public class Node {
  static class Local extends org.opensearch.node.Node {
    Local(Settings settings) {
      super(
          InternalSettingsPreparer.prepareEnvironment(settings, Collections.emptyMap(), null, () -> "local"),
          List.of(Netty4Plugin.class),
          false);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Settings settings =
        Settings.builder()
            .put("path.home", arguments[0])
            .put("discovery.type", "single-node")
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("network.host", "127.0.0.1")
            .put("http.port", "0")
            .put("transport.port", "0")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .put("node.store.allow_mmap", false)
            .build();
    try (Local node = new Local(settings)) {
      node.start();
      System.out.println(
          "listens " + node.injector().getInstance(HttpServerTransport.class).boundAddress().publishAddress());
      while (System.in.read() >= 0) {}
    }
    System.exit(0);
  }
}
