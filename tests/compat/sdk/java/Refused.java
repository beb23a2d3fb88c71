import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;

/**
 * Clients of RocketMQ's Java SDK that a gateway refuses. Arguments: operation, endpoints.
 *
 * <p>`lite` subscribes to a lite topic, `filter` receives with a filter that is too long. Both print REFUSED with the
 * error that the SDK shows.
 */
public final class Refused {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[1]).enableSsl(false).build();
        try {
            if (arguments[0].equals("lite")) {
                lite(configuration);
            } else {
                filter(configuration);
            }
            System.out.println("ACCEPTED");
        } catch (Exception error) {
            System.out.println("REFUSED " + error);
        }
        System.exit(0);
    }

    static void lite(ClientConfiguration configuration) throws Exception {
        PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("lite")
            .bindTopic("Plain")
            .setMessageListener(view -> ConsumeResult.SUCCESS)
            .build()
            .subscribeLite("orders/7");
    }

    static void filter(ClientConfiguration configuration) throws Exception {
        PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("filter")
            .setAwaitDuration(Duration.ofSeconds(1))
            .setSubscriptionExpressions(Map.of("Plain", new FilterExpression("x".repeat(40_000))))
            .build()
            .receive(1, Duration.ofSeconds(30));
    }
}
