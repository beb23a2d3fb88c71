package compat;

import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Measures the latency from send to listener. One producer sends at a constant rate and one push consumer of the same process
 * receives, both with default settings. Each message contains the time before it was sent.
 *
 * <p>Prints MEASURING after the warm-up, and at the end one line of JSON: messagesPerSecond (received), p50Ms, p99Ms,
 * meanMs, maxMs, messages, sent, sendP50Ms (of the sends alone), seconds.
 */
public final class LoadEndToEnd {
    private static final long SETTLE_MS = 2_000;

    private final AtomicBoolean stopped = new AtomicBoolean();
    private final Latencies latencies = new Latencies();
    private final Latencies sends = new Latencies();
    private volatile long measuredFromNs = Long.MAX_VALUE;
    private volatile long measuredToNs = Long.MAX_VALUE;
    private int sent;

    public static void main(String[] args) {
        try {
            new LoadEndToEnd().measure(new Arguments(args));
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void measure(Arguments arguments) throws Exception {
        String topic = arguments.text("topic", "LoadTest");
        DefaultMQProducer producer = new DefaultMQProducer("benchmark_producer");
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.start();
        Topics.create(producer, arguments.text("broker"), topic, arguments.number("queues", 8), 6);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("benchmark_consumer");
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(this::receive);
        consumer.start();
        Thread sender = new Thread(() -> send(producer, topic, arguments), "sender");
        sender.start();

        Thread.sleep(arguments.number("warmup", 15) * 1000L);
        System.out.println("MEASURING");
        measuredFromNs = System.nanoTime();
        Thread.sleep(arguments.number("seconds", 20) * 1000L);
        measuredToNs = System.nanoTime();
        double seconds = (measuredToNs - measuredFromNs) / 1e9;
        stopped.set(true);
        sender.join();
        Thread.sleep(SETTLE_MS);
        System.out.println(RemotingSerializable.toJson(figures(seconds), false));
        System.out.flush();
    }

    private void send(DefaultMQProducer producer, String topic, Arguments arguments) {
        int size = Math.max(Long.BYTES, arguments.number("size", 128));
        long intervalNs = 1_000_000_000L / arguments.number("rate", 1000);
        long next = System.nanoTime();
        while (!stopped.get()) {
            long now = System.nanoTime();
            if (now < next) {
                LockSupport.parkNanos(next - now);
                continue;
            }
            next = Math.max(next + intervalNs, now - intervalNs);
            try {
                long begin = System.nanoTime();
                producer.send(new Message(topic, ByteBuffer.allocate(size).putLong(0, begin).array()));
                if (isMeasured(begin)) {
                    sends.add(System.nanoTime() - begin);
                    sent++;
                }
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        }
    }

    private ConsumeConcurrentlyStatus receive(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        long now = System.nanoTime();
        for (MessageExt message : batch) {
            long begin = ByteBuffer.wrap(message.getBody()).getLong(0);
            if (isMeasured(begin)) {
                synchronized (latencies) {
                    latencies.add(now - begin);
                }
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private boolean isMeasured(long momentNs) {
        return momentNs >= measuredFromNs && momentNs < measuredToNs;
    }

    private Map<String, Object> figures(double seconds) {
        Map<String, Object> figures = new LinkedHashMap<>();
        synchronized (latencies) {
            figures.put("messagesPerSecond", latencies.count() / seconds);
            Latencies.describe(Collections.singletonList(latencies), figures);
            figures.put("messages", latencies.count());
        }
        figures.put("sent", sent);
        Map<String, Object> sending = new LinkedHashMap<>();
        Latencies.describe(Collections.singletonList(sends), sending);
        figures.put("sendP50Ms", sending.get("p50Ms"));
        figures.put("seconds", seconds);
        return figures;
    }
}
