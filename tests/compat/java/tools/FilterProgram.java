package compat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Evaluates SQL92 expressions with RocketMQ's filter module. Reads {"id", "expression", "messages"} as one line of JSON
 * from stdin, where a message is an object of properties, and writes "@id […]" with a result for each message: "true",
 * "false", "null" or "fails". An expression that RocketMQ refuses has the single result "invalid".
 */
public final class FilterProgram {
    private FilterProgram() {
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        out.println("@ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> request = RemotingSerializable.fromJson(line, Map.class);
            List<String> results = evaluate(
                request.get("expression").toString(), (List<Map<String, String>>) request.get("messages"));
            out.println("@" + request.get("id") + " " + RemotingSerializable.toJson(results, false));
        }
    }

    private static List<String> evaluate(String text, List<Map<String, String>> messages) {
        List<String> results = new ArrayList<>();
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable refused) {
            results.add("invalid");
            return results;
        }
        for (Map<String, String> properties : messages) {
            try {
                results.add(String.valueOf(expression.evaluate(new MessageEvaluationContext(properties))));
            } catch (Throwable failure) {
                results.add("fails");
            }
        }
        return results;
    }
}
