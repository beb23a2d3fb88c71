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
 * A program with RocketMQ clients, driven by the tests' agent.py. It reads one request per line from stdin, as JSON
 * {"id", "op", …}, and writes one response per line to stdout: "@id {"ok": …}" or "@id {"error": …, "code": …}".
 */
public final class Agent {
    /** An operation: takes the fields of a request and returns the value of the response. */
    interface Operation {
        Object run(Request request) throws Exception;
    }

    private final Map<String, Operation> operations = new HashMap<>();

    private Agent(String nameserver) {
        Clients clients = new Clients(nameserver);
        new SendOperations(clients).addTo(operations);
        new TransactionOperations(clients).addTo(operations);
        new PushOperations(clients).addTo(operations);
        new PullOperations(clients).addTo(operations);
        new QueryOperations(clients).addTo(operations);
        new TraceOperations(clients).addTo(operations);
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
            out.println("@" + request.text("id") + " " + RemotingSerializable.toJson(agent.respond(request), false));
        }
        System.exit(0);
    }

    private Map<String, Object> respond(Request request) {
        Map<String, Object> response = new LinkedHashMap<>();
        try {
            Operation operation = operations.get(request.text("op"));
            if (operation == null) {
                throw new IllegalArgumentException("unknown op " + request.text("op"));
            }
            response.put("ok", operation.run(request));
        } catch (Throwable error) {
            response.putAll(describe(error));
        }
        return response;
    }

    /** Returns the class and message of an error, and RocketMQ's response code if it has one. */
    static Map<String, Object> describe(Throwable error) {
        Map<String, Object> description = new LinkedHashMap<>();
        description.put("error", error.toString());
        Throwable cause = error;
        while (cause != null && !description.containsKey("code")) {
            if (cause instanceof MQBrokerException) {
                description.put("code", ((MQBrokerException) cause).getResponseCode());
            } else if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() >= 0) {
                description.put("code", ((MQClientException) cause).getResponseCode());
            }
            cause = cause.getCause();
        }
        return description;
    }
}
