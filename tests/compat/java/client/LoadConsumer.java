package compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Measures a push consumer with default settings, with ordered=1 one that consumes in order, with pop=1 one that pops and
 * acks (the broker must have the request mode POP for topic and group). A producer of this program first sends the messages
 * in batches of 32. The program fails if a queue was consumed in order and its offsets do not follow each other.
 *
 * <p>Prints MEASURING when the consumer starts, and at the end one line of JSON: messagesPerSecond, messages, seconds, and
 * bytes (size of the bodies). The time is measured from the start of the consumer to the last call of the listener.
 */
public final class LoadConsumer {
    private static final int BATCH = 32;
    private static final int SENDERS = 8;
    private static final long DRAIN_TIMEOUT_S = 600;

    private LoadConsumer() {
    }

    public static void main(String[] args) {
        try {
            Arguments arguments = new Arguments(args);
            String topic = arguments.text("topic", "LoadTest");
            int messages = arguments.number("messages", 5_000_000) / (BATCH * SENDERS) * BATCH * SENDERS;
            fill(arguments, topic, messages);
            System.out.println(RemotingSerializable.toJson(drain(arguments, topic, messages), false));
            System.out.flush();
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void fill(Arguments arguments, String topic, int messages) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("benchmark_producer");
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setInstanceName("fill");
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        Topics.create(producer, arguments.text("broker"), topic, arguments.number("queues", 8), 6);
        byte[] body = new byte[arguments.number("size", 128)];
        List<Thread> senders = new ArrayList<>();
        AtomicLong sent = new AtomicLong();
        for (int i = 0; i < SENDERS; i++) {
            Thread sender = new Thread(() -> {
                try {
                    for (int left = messages / SENDERS; left > 0; left -= BATCH) {
                        List<Message> batch = new ArrayList<>(BATCH);
                        for (int j = 0; j < BATCH; j++) {
                            batch.add(new Message(topic, body));
                        }
                        producer.send(batch);
                        sent.addAndGet(BATCH);
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            sender.start();
            senders.add(sender);
        }
        for (Thread sender : senders) {
            sender.join();
        }
        producer.shutdown();
        if (sent.get() != messages) {
            throw new IllegalStateException("only " + sent + " of " + messages + " messages were stored");
        }
    }

    private static Map<String, Object> drain(Arguments arguments, String topic, int messages) throws Exception {
        AtomicLong left = new AtomicLong(messages);
        AtomicLong bytes = new AtomicLong();
        AtomicLong outOfOrder = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("benchmark_consumer");
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setInstanceName("drain");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        if (arguments.number("pop", 0) == 1) {
            // The setting exists only in 5.x; the same sources are compiled against 4.9.8.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        Consumer<List<MessageExt>> count = batch -> {
            for (MessageExt message : batch) {
                bytes.addAndGet(message.getBody().length);
            }
            if (left.addAndGet(-batch.size()) <= 0) {
                done.countDown();
            }
        };
        if (arguments.number("ordered", 0) == 1) {
            Map<Integer, Long> nextOffsets = new ConcurrentHashMap<>();
            consumer.registerMessageListener((List<MessageExt> batch, ConsumeOrderlyContext context) -> {
                for (MessageExt message : batch) {
                    Long next = nextOffsets.put(message.getQueueId(), message.getQueueOffset() + 1);
                    if (message.getQueueOffset() != (next == null ? 0 : next)) {
                        outOfOrder.incrementAndGet();
                    }
                }
                count.accept(batch);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
                count.accept(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        System.out.println("MEASURING");
        long begin = System.nanoTime();
        consumer.start();
        if (!done.await(DRAIN_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left + " of " + messages + " messages did not come in " + DRAIN_TIMEOUT_S + " s");
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        consumer.shutdown();
        if (outOfOrder.get() > 0) {
            throw new IllegalStateException(outOfOrder + " messages were consumed out of order");
        }
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("messagesPerSecond", messages / seconds);
        figures.put("messages", messages);
        figures.put("bytes", bytes.get());
        figures.put("seconds", seconds);
        return figures;
    }
}
