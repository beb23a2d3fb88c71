import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Producers and push consumers of a workload, with the default settings of RocketMQ's Java client.
 *
 * <p>The arguments, commands and reports are those of java_clients.py. The program ends when its input ends.
 */
public final class OmbClients {
    private static final long REPORT_MS = 50;
    /** Buckets up to e^24 µs, more than seven hours. */
    private static final int MAX_LOG = 24;

    private final Map<String, String> arguments = new HashMap<>();
    private final Map<String, Times> latencies = new LinkedHashMap<>();
    private final LongAdder sent = new LongAdder();
    private final LongAdder errors = new LongAdder();
    private final LongAdder received = new LongAdder();
    private final AtomicLong numbers = new AtomicLong();
    private final Set<String> unprobed = ConcurrentHashMap.newKeySet();
    private final List<DefaultMQProducer> producers = new ArrayList<>();
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final List<byte[]> payloads = new ArrayList<>();
    private Pacer pacer;
    private int clients;

    public static void main(String[] args) {
        try {
            new OmbClients(args).run();
            System.exit(0);
        } catch (Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.out.println(cause);
            }
            System.exit(1);
        }
    }

    private OmbClients(String[] args) {
        for (String arg : args) {
            int at = arg.indexOf('=');
            arguments.put(arg.substring(0, at), arg.substring(at + 1));
        }
        for (String name : List.of("publishLatency", "publishDelayLatency", "endToEndLatency")) {
            latencies.put(name, new Times(Double.parseDouble(arguments.get("bucketsPerE"))));
        }
    }

    private int number(String key) {
        return Integer.parseInt(arguments.get(key));
    }

    private void run() throws Exception {
        byte[] all = Files.readAllBytes(Path.of(arguments.get("payloads")));
        for (int at = 0; at < all.length; at += number("size")) {
            payloads.add(Arrays.copyOfRange(all, at, at + number("size")));
        }
        String[] topics = arguments.get("topics").split(",");
        startConsumers(topics);
        for (int i = 0; i < topics.length * number("producers"); i++) {
            producers.add(startProducer());
        }
        for (String topic : topics) {
            producers.get(0).send(new Message(topic, payloads.get(0)));
            sent.increment();
        }
        Thread reports = new Thread(this::report, "reports");
        reports.setDaemon(true);
        reports.start();
        obey(topics);
        producers.forEach(DefaultMQProducer::shutdown);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    private void startConsumers(String[] topics) throws Exception {
        for (String topic : topics) {
            for (int i = 0; i < number("subscriptions"); i++) {
                String group = topic + "-sub-" + i;
                unprobed.add(group);
                for (int j = 0; j < number("consumers"); j++) {
                    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
                    consumer.setNamesrvAddr(arguments.get("nameservers"));
                    consumer.setInstanceName("omb-" + clients++);
                    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                    consumer.subscribe(topic, "*");
                    consumer.registerMessageListener(
                        (List<MessageExt> batch, ConsumeConcurrentlyContext context) -> receive(group, batch));
                    consumer.start();
                    consumers.add(consumer);
                }
            }
        }
    }

    private ConsumeConcurrentlyStatus receive(String group, List<MessageExt> batch) {
        long nowMs = System.currentTimeMillis();
        for (MessageExt message : batch) {
            latencies.get("endToEndLatency").add(Math.max(nowMs - message.getBornTimestamp(), 0) * 1000);
        }
        received.add(batch.size());
        unprobed.remove(group);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private DefaultMQProducer startProducer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("omb");
        producer.setNamesrvAddr(arguments.get("nameservers"));
        producer.setInstanceName("omb-" + clients++);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        return producer;
    }

    private void obey(String[] topics) {
        pacer = new Pacer(Double.parseDouble(arguments.get("rate")));
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            switch (words[0]) {
                case "start":
                    pacer.restart(pacer.rate);
                    for (int i = 0; i < producers.size(); i++) {
                        DefaultMQProducer producer = producers.get(i);
                        String topic = topics[i / number("producers")];
                        Thread sender = new Thread(() -> send(producer, topic), "sender-" + i);
                        sender.setDaemon(true);
                        sender.start();
                    }
                    break;
                case "rate":
                    pacer.restart(Double.parseDouble(words[1]));
                    break;
                case "pause":
                    consumers.forEach(DefaultMQPushConsumer::suspend);
                    break;
                case "resume":
                    consumers.forEach(DefaultMQPushConsumer::resume);
                    break;
                default:
                    throw new IllegalArgumentException("no such command: " + words[0]);
            }
        }
    }

    private void send(DefaultMQProducer producer, String topic) {
        Semaphore free = new Semaphore(number("inFlight"));
        while (true) {
            long intendedNs = pacer.next();
            long left;
            while ((left = intendedNs - System.nanoTime()) > 0) {
                LockSupport.parkNanos(left);
            }
            free.acquireUninterruptibly();
            long number = numbers.getAndIncrement();
            Message message = new Message(topic, payloads.get((int) (number % payloads.size())));
            if (arguments.get("keys").equals("KEY_ROUND_ROBIN")) {
                message.setKeys(Long.toString(number % number("keyCount")));
            } else if (arguments.get("keys").equals("RANDOM_NANO")) {
                message.setKeys(Integer.toString(ThreadLocalRandom.current().nextInt(number("keyCount"))));
            }
            long beganNs = System.nanoTime();
            try {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        latencies.get("publishLatency").add((System.nanoTime() - beganNs) / 1000);
                        latencies.get("publishDelayLatency").add(Math.max(beganNs - intendedNs, 0) / 1000);
                        sent.increment();
                        free.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        errors.increment();
                        free.release();
                    }
                });
            } catch (Exception error) {
                errors.increment();
                free.release();
            }
        }
    }

    private void report() {
        while (true) {
            StringBuilder line = new StringBuilder("{\"probed\":").append(unprobed.isEmpty());
            line.append(",\"sent\":").append(sent.sumThenReset());
            line.append(",\"errors\":").append(errors.sumThenReset());
            line.append(",\"received\":").append(received.sumThenReset());
            String separator = ",\"latencies\":{";
            for (Map.Entry<String, Times> each : latencies.entrySet()) {
                line.append(separator).append('"').append(each.getKey()).append("\":");
                each.getValue().moveTo(line);
                separator = ",";
            }
            System.out.println(line.append("}}"));
            LockSupport.parkNanos(REPORT_MS * 1_000_000);
        }
    }

    /** Gives each send its intended time; a late send does not delay those after it. */
    private static final class Pacer {
        private double rate;
        private double nextNs;

        private Pacer(double rate) {
            restart(rate);
        }

        private synchronized void restart(double newRate) {
            rate = newRate;
            nextNs = 0;
        }

        private synchronized long next() {
            long now = System.nanoTime();
            if (nextNs == 0) {
                nextNs = now;
            }
            long intended = (long) nextNs;
            nextNs += 1e9 / rate;
            return intended;
        }
    }

    /** Counts of times in µs by logarithmic bucket, as Histogram in figures.py. */
    private static final class Times {
        private final double bucketsPerE;
        private final AtomicLongArray buckets;
        private final LongAdder sumUs = new LongAdder();
        private final LongAccumulator maxUs = new LongAccumulator(Math::max, 0);

        private Times(double bucketsPerE) {
            this.bucketsPerE = bucketsPerE;
            buckets = new AtomicLongArray((int) (MAX_LOG * bucketsPerE) + 1);
        }

        private void add(long us) {
            int bucket = (int) (Math.log(Math.max(us, 1)) * bucketsPerE);
            buckets.incrementAndGet(Math.min(bucket, buckets.length() - 1));
            sumUs.add(us);
            maxUs.accumulate(us);
        }

        private void moveTo(StringBuilder line) {
            line.append("{\"sum_us\":").append(sumUs.sumThenReset());
            line.append(",\"max_us\":").append(maxUs.getThenReset()).append(",\"buckets\":{");
            String separator = "";
            for (int i = 0; i < buckets.length(); i++) {
                long count = buckets.get(i) == 0 ? 0 : buckets.getAndSet(i, 0);
                if (count > 0) {
                    line.append(separator).append('"').append(i).append("\":").append(count);
                    separator = ",";
                }
            }
            line.append("}}");
        }
    }
}
