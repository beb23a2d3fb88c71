package compat;

import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Operations of producers. */
final class SendOperations {
    private static final int ASYNC_WAIT_S = 20;

    private final Clients clients;
    private final MessageQueueSelector byHash = new SelectMessageQueueByHash();

    SendOperations(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("create_topic", this::createTopic);
        operations.put("send", this::send);
        operations.put("send_batch", this::sendBatch);
        operations.put("send_vip", this::sendVip);
        operations.put("send_in_transaction", this::sendInTransaction);
        operations.put("recall", this::recall);
        operations.put("request", request -> Facts.of((MessageExt) clients.producer().request(
            message(request), request.number("timeoutMs"))));
        operations.put("request_by_callback", this::requestByCallback);
    }

    /** Sends a request and returns its reply; unlike the blocking form, this works with the client 5.3.3 too. */
    private Object requestByCallback(Request request) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        RequestCallback callback = new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) { // the client also calls this when the request is stored
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        };
        clients.producer().request(message(request), callback, request.number("timeoutMs"));
        return Facts.of((MessageExt) reply.get(request.number("timeoutMs"), TimeUnit.MILLISECONDS));
    }

    /** Recalls a timer message and returns its id; clients before 5.3.1 have no such method. */
    private Object recall(Request request) throws Exception {
        DefaultMQProducer producer = clients.producer();
        try {
            return producer.getClass().getMethod("recallMessage", String.class, String.class)
                .invoke(producer, request.text("topic"), request.text("handle"));
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    private Object createTopic(Request request) throws Exception {
        return Topics.create(
            clients.producer(),
            request.text("address"),
            request.text("topic"),
            (int) request.number("queues"),
            (int) request.number("permission", 6));
    }

    /** Sends the messages one after another (async: concurrently); returns a result or an error for each. */
    private Object send(Request request) throws Exception {
        String mode = request.text("mode", "sync");
        List<CompletableFuture<SendResult>> sent = new ArrayList<>();
        for (Request wanted : request.list("messages")) {
            sent.add(sendOne(mode, wanted));
        }
        List<Object> results = new ArrayList<>();
        for (CompletableFuture<SendResult> future : sent) {
            try {
                SendResult result = future.get(ASYNC_WAIT_S, TimeUnit.SECONDS);
                results.add(result == null ? null : Facts.of(result));
            } catch (Exception error) {
                results.add(Agent.describe(error));
            }
        }
        return results;
    }

    private CompletableFuture<SendResult> sendOne(String mode, Request wanted) {
        CompletableFuture<SendResult> future = new CompletableFuture<>();
        try {
            DefaultMQProducer producer = clients.producer();
            Message message = message(wanted);
            if (mode.equals("oneway")) {
                producer.sendOneway(message);
                future.complete(null);
            } else if (mode.equals("async")) {
                producer.send(message, callback(future));
            } else if (wanted.has("hashKey")) {
                future.complete(producer.send(message, byHash, wanted.text("hashKey")));
            } else if (wanted.has("queueId")) {
                future.complete(producer.send(message, wanted.queue()));
            } else {
                future.complete(producer.send(message));
            }
        } catch (Exception error) {
            future.completeExceptionally(error);
        }
        return future;
    }

    private Object sendBatch(Request request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Request wanted : request.list("messages")) {
            messages.add(message(wanted));
        }
        return Facts.of(clients.producer().send(messages));
    }

    /** Sends through the VIP channel, the second port of the broker. */
    private Object sendVip(Request request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("CompatVips");
        clients.configure(producer);
        producer.setVipChannelEnabled(true);
        producer.start();
        try {
            return Facts.of(producer.send(message(request)));
        } finally {
            producer.shutdown();
        }
    }

    private Object sendInTransaction(Request request) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("CompatTransactions");
        clients.configure(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        try {
            return Facts.of(producer.sendMessageInTransaction(message(request), null));
        } finally {
            producer.shutdown();
        }
    }

    private static Message message(Request wanted) {
        byte[] body = wanted.has("bodySize")
            ? filled((int) wanted.number("bodySize"))
            : wanted.text("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(wanted.text("topic"), body);
        message.setFlag((int) wanted.number("flag", 0));
        if (wanted.has("tags")) {
            message.setTags(wanted.text("tags"));
        }
        if (wanted.has("keys")) {
            message.setKeys(wanted.text("keys"));
        }
        if (wanted.has("delayLevel")) {
            message.setDelayTimeLevel((int) wanted.number("delayLevel"));
        }
        // The setters of these properties came with 5.0.
        for (String name : List.of("TIMER_DELAY_MS", "TIMER_DELIVER_MS")) {
            if (wanted.has(name)) {
                MessageAccessor.putProperty(message, name, wanted.text(name));
            }
        }
        wanted.map("properties").forEach((name, value) -> message.putUserProperty(name, value.toString()));
        return message;
    }

    /** Returns an incompressible body. */
    private static byte[] filled(int size) {
        byte[] body = new byte[size];
        new Random(size).nextBytes(body);
        return body;
    }

    private static SendCallback callback(CompletableFuture<SendResult> future) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        };
    }
}
