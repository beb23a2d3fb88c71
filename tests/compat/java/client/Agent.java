package compat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * A RocketMQ client program that does what it is told: one request a line on stdin, {"id", "op", …} as JSON, and one
 * answer a line on stdout, "@id {"ok": …}" or "@id {"error": …, "code": …}". The tests' agent.py speaks to it.
 */
public final class Agent {
    /** One operation: the request's fields in, what is to be answered out. */
    interface Operation {
        Object run(Request request) throws Exception;
    }

    private final Map<String, Operation> operations = new HashMap<>();

    private Agent(String nameserver) {
        Clients clients = new Clients(nameserver);
        new SendOperations(clients).addTo(operations);
        new PushOperations(clients).addTo(operations);
        new PullOperations(clients).addTo(operations);
        new QueryOperations(clients).addTo(operations);
        operations.put("shutdown", request -> {
            clients.shutdown();
            return true;
        });
    }

    public static void main(String[] args) throws Exception {
        Agent agent = new Agent(new Arguments(args).text("namesrv"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        out.println("@ready {}");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Request request = Request.parse(line);
            out.println("@" + request.text("id") + " " + RemotingSerializable.toJson(agent.answer(request), false));
        }
        System.exit(0);
    }

    private Map<String, Object> answer(Request request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            Operation operation = operations.get(request.text("op"));
            if (operation == null) {
                throw new IllegalArgumentException("unknown op " + request.text("op"));
            }
            answer.put("ok", operation.run(request));
        } catch (Throwable error) {
            answer.putAll(describe(error));
        }
        return answer;
    }

    /** The error's class, words, and RocketMQ's response code where it has one. */
    static Map<String, Object> describe(Throwable error) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("error", error.toString());
        Throwable cause = error;
        while (cause != null && !said.containsKey("code")) {
            if (cause instanceof MQBrokerException) {
                said.put("code", ((MQBrokerException) cause).getResponseCode());
            } else if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() >= 0) {
                said.put("code", ((MQClientException) cause).getResponseCode());
            }
            cause = cause.getCause();
        }
        return said;
    }
}
