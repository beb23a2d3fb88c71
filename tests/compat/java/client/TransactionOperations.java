package compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Operations of producers of transactions. The argument of a send is the state of its local transaction; a check
 * of a body that starts with "COMMIT" or "ROLLBACK" returns that state, of any other body UNKNOW.
 */
final class TransactionOperations {
    private final Clients clients;
    private final Map<String, TransactionMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, List<String>> checked = new ConcurrentHashMap<>();

    TransactionOperations(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("transaction_start", this::start);
        operations.put("transaction_send", this::send);
        operations.put("transaction_checked", request -> new ArrayList<>(checked.get(request.text("name"))));
        operations.put("transaction_stop", request -> {
            producers.remove(request.text("name")).shutdown();
            return true;
        });
    }

    private Object start(Request request) throws Exception {
        List<String> bodies = new CopyOnWriteArrayList<>();
        TransactionMQProducer producer = new TransactionMQProducer(request.text("group"));
        clients.configure(producer);
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf((String) argument);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                bodies.add(body);
                if (body.startsWith("COMMIT")) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                return body.startsWith("ROLLBACK")
                    ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        producers.put(request.text("name"), producer);
        checked.put(request.text("name"), bodies);
        return true;
    }

    private Object send(Request request) throws Exception {
        Message message = new Message(request.text("topic"), request.text("body").getBytes(StandardCharsets.UTF_8));
        return Facts.of(producers.get(request.text("name")).sendMessageInTransaction(message, request.text("state")));
    }
}
