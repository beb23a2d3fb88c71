package compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * The load of RocketMQ's benchmark Producer: several threads share one DefaultMQProducer. Each thread sends one message
 * after another and waits for each response. Messages are uncompressed, without keys or tags. With transaction=1 the threads
 * share one TransactionMQProducer, and each message is committed by its local transaction.
 *
 * <p>Prints MEASURING after the warm-up, and at the end one line of JSON: messagesPerSecond, p50Ms, p99Ms, meanMs,
 * maxMs, messages, failed, notOk, seconds, firstError. Measuring starts after the warm-up, while the threads keep sending.
 */
public final class LoadProducer {
    private static final AtomicBoolean MEASURING = new AtomicBoolean();
    private static final AtomicBoolean STOPPED = new AtomicBoolean();
    private static final AtomicReference<Exception> FIRST_ERROR = new AtomicReference<>();

    private LoadProducer() {
    }

    /** A sending thread with the latencies of its sends. */
    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final int batch;
        final Latencies latencies = new Latencies();
        int failed;
        int notOk;

        Sender(DefaultMQProducer producer, String topic, int size, int batch) {
            this.producer = producer;
            this.topic = topic;
            this.batch = batch;
            this.body = new byte[size];
            byte[] text = "hello baby".getBytes(StandardCharsets.US_ASCII);
            for (int i = 0; i < size; i++) {
                body[i] = text[i % text.length];
            }
        }

        @Override
        public void run() {
            while (!STOPPED.get()) {
                boolean counted = MEASURING.get();
                long begin = System.nanoTime();
                try {
                    SendResult result = send();
                    if (counted) {
                        note(System.nanoTime() - begin, result.getSendStatus() == SendStatus.SEND_OK);
                    }
                } catch (Exception error) {
                    FIRST_ERROR.compareAndSet(null, error);
                    failed += counted ? 1 : 0;
                }
            }
        }

        private SendResult send() throws Exception {
            if (producer instanceof TransactionMQProducer) {
                return producer.sendMessageInTransaction(new Message(topic, body), null);
            }
            if (batch == 1) {
                return producer.send(new Message(topic, body));
            }
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(new Message(topic, body));
            }
            return producer.send(messages);
        }

        private void note(long latencyNs, boolean ok) {
            latencies.add(latencyNs);
            notOk += ok ? 0 : 1;
        }
    }

    public static void main(String[] args) {
        try {
            measure(new Arguments(args));
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void measure(Arguments arguments) throws Exception {
        String topic = arguments.text("topic", "LoadTest");
        int batch = arguments.number("batch", 1);
        boolean transaction = arguments.number("transaction", 0) == 1;
        DefaultMQProducer producer = transaction ? committingProducer()
            : new DefaultMQProducer("benchmark_producer", Clients.signing());
        producer.setNamesrvAddr(arguments.text("namesrv"));
        producer.setInstanceName(Long.toString(System.currentTimeMillis()));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        String broker = arguments.text("broker", ""); // none: the topic exists already
        if (!broker.isEmpty()) {
            Topics.create(producer, broker, topic, arguments.number("queues", 8), 6);
        }

        List<Sender> senders = new ArrayList<>();
        for (int i = 0; i < arguments.number("threads", 32); i++) {
            Sender sender = new Sender(producer, topic, arguments.number("size", 128), batch);
            sender.start();
            senders.add(sender);
        }
        Thread.sleep(arguments.number("warmup", 15) * 1000L);
        System.out.println("MEASURING");
        long begin = System.nanoTime();
        MEASURING.set(true);
        Thread.sleep(arguments.number("seconds", 20) * 1000L);
        MEASURING.set(false);
        double seconds = (System.nanoTime() - begin) / 1e9;
        STOPPED.set(true);
        for (Sender sender : senders) {
            sender.join();
        }
        System.out.println(RemotingSerializable.toJson(figures(senders, seconds, batch), false));
        System.out.flush();
        producer.shutdown();
    }

    private static TransactionMQProducer committingProducer() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("benchmark_producer", Clients.signing());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    private static Map<String, Object> figures(List<Sender> senders, double seconds, int batch) {
        long messages = senders.stream().mapToLong(sender -> sender.latencies.count()).sum() * batch;
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("messagesPerSecond", messages / seconds);
        Latencies.describe(senders.stream().map(sender -> sender.latencies).collect(Collectors.toList()), figures);
        figures.put("messages", messages);
        figures.put("failed", senders.stream().mapToInt(sender -> sender.failed).sum());
        figures.put("notOk", senders.stream().mapToInt(sender -> sender.notOk).sum());
        figures.put("seconds", seconds);
        Exception error = FIRST_ERROR.get();
        figures.put("firstError", error == null ? "" : error.toString());
        return figures;
    }
}
