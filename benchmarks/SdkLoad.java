import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Measures RocketMQ's Java SDK for gRPC. Arguments: operation, endpoints, topic, threads, size, warmup, seconds.
 *
 * <p>With the operation `send`, the threads share one producer, and each sends one message after another; the latencies
 * are those of the sends. With `receive` they share one simple consumer of a backlog; each receives up to 32 messages and
 * acks them one by one, and a message counts when it is acked; the latencies are those of the acks.
 *
 * <p>Prints MEASURING after the warm-up, and at the end one line of JSON as LoadProducer. Fails if a receive is empty
 * while the consumer is measured: the backlog was too small.
 */
public final class SdkLoad {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final AtomicReference<String> STATE = new AtomicReference<>("warm-up");
    static final AtomicReference<Throwable> FIRST_ERROR = new AtomicReference<>();
    static final AtomicInteger FAILED = new AtomicInteger();
    static final AtomicLong EMPTY = new AtomicLong();
    static final List<List<Long>> LATENCIES = new ArrayList<>();

    interface Step {
        void run(List<Long> latencies) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[1]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
        String topic = arguments[2];
        Step step = arguments[0].equals("send")
            ? sends(configuration, topic, Integer.parseInt(arguments[4]))
            : receives(configuration, topic);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[3]); i++) {
            List<Long> latencies = new ArrayList<>();
            LATENCIES.add(latencies);
            threads.add(new Thread(() -> repeat(step, latencies)));
        }
        threads.forEach(Thread::start);
        Thread.sleep(Integer.parseInt(arguments[5]) * 1000L);
        System.out.println("MEASURING");
        STATE.set("measuring");
        long begin = System.nanoTime();
        Thread.sleep(Integer.parseInt(arguments[6]) * 1000L);
        STATE.set("stopped");
        double seconds = (System.nanoTime() - begin) / 1e9;
        for (Thread thread : threads) {
            thread.join();
        }
        if (EMPTY.get() > 0) {
            throw new IllegalStateException("the backlog ended during the measurement: raise --messages");
        }
        print(seconds);
        System.exit(0);
    }

    static void repeat(Step step, List<Long> latencies) {
        while (!STATE.get().equals("stopped")) {
            try {
                step.run(latencies);
            } catch (Throwable error) {
                FIRST_ERROR.compareAndSet(null, error);
                FAILED.incrementAndGet();
            }
        }
    }

    static Step sends(ClientConfiguration configuration, String topic, int size) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        byte[] body = new byte[size];
        return latencies -> {
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
            boolean counted = STATE.get().equals("measuring");
            long begin = System.nanoTime();
            producer.send(message);
            if (counted) {
                latencies.add(System.nanoTime() - begin);
            }
        };
    }

    static Step receives(ClientConfiguration configuration, String topic) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("benchmark_consumer")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .build();
        return latencies -> {
            List<MessageView> views = consumer.receive(32, Duration.ofMinutes(5));
            if (views.isEmpty() && STATE.get().equals("measuring")) {
                EMPTY.incrementAndGet();
            }
            for (MessageView view : views) {
                long begin = System.nanoTime();
                consumer.ack(view);
                if (STATE.get().equals("measuring")) {
                    latencies.add(System.nanoTime() - begin);
                }
            }
        };
    }

    static void print(double seconds) {
        long[] all = LATENCIES.stream().flatMap(List::stream).mapToLong(Long::longValue).sorted().toArray();
        if (all.length == 0) {
            throw new IllegalStateException("nothing was measured; first error: " + FIRST_ERROR.get());
        }
        Throwable error = FIRST_ERROR.get();
        System.out.println(String.format(Locale.ROOT,
            "{\"messagesPerSecond\":%f,\"p50Ms\":%f,\"p99Ms\":%f,\"meanMs\":%f,\"maxMs\":%f,\"messages\":%d,"
                + "\"failed\":%d,\"notOk\":0,\"firstError\":\"%s\",\"seconds\":%f}",
            all.length / seconds, all[all.length / 2] / 1e6, all[(int) (all.length * 0.99)] / 1e6,
            Arrays.stream(all).average().orElse(0) / 1e6, all[all.length - 1] / 1e6, all.length, FAILED.get(),
            error == null ? "" : error.toString().replaceAll("[\"\\\\\n]", " "), seconds));
    }
}
