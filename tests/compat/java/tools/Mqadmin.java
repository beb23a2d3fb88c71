package compat;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs many mqadmin commands of RocketMQ concurrently in one JVM, because each takes three seconds to shut its client down.
 * A line on stdin is a number and the arguments, separated by tabs. The response is "@number " and everything that the
 * command printed, in Base64. `deleteTopicOfAll TOPIC CLUSTER` calls the method deleteTopic.
 */
public final class Mqadmin {
    /** Output of the command that runs in the thread; other threads print nothing. */
    private static final InheritableThreadLocal<ByteArrayOutputStream> OUTPUT = new InheritableThreadLocal<>();

    /** Error if two clients are created in the same millisecond; the command had no effect and is repeated. */
    private static final String NAME_TAKEN = "The adminExt group[admin_ext_group] has created already";

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        PrintStream routed = new PrintStream(new Routed(), true, "UTF-8");
        System.setOut(routed);
        System.setErr(routed);
        MQAdminStartup.initCommand();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println("@ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            Thread.sleep(50); // the name of the client is the time in milliseconds
            new Thread(() -> execute(words, out)).start();
        }
        System.exit(0);
    }

    private static void execute(String[] words, PrintStream out) {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        OUTPUT.set(output);
        do {
            output.reset();
            try {
                run(words[1], Arrays.copyOfRange(words, 2, words.length));
            } catch (Throwable error) {
                error.printStackTrace(System.out);
            }
            System.out.flush();
        } while (output.toString().contains(NAME_TAKEN));
        String encoded = Base64.getEncoder().encodeToString(output.toByteArray());
        synchronized (out) {
            out.println("@" + words[0] + " " + encoded);
            out.flush();
        }
    }

    private static void run(String name, String[] arguments) throws Exception {
        if (name.equals("deleteTopicOfAll")) {
            deleteTopicOfAll(arguments[0], arguments[1]);
            return;
        }
        SubCommand command = Commands.find(name);
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        CommandLine line = ServerUtil.parseCmdLine("mqadmin " + name, arguments, options, new DefaultParser());
        synchronized (command) { // a command keeps its client in a field
            command.execute(line, options, signing());
        }
    }

    /** No command, but a method of its API, which sends to the slaves, too. */
    private static void deleteTopicOfAll(String topic, String cluster) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(signing());
        admin.setInstanceName(topic);
        admin.start();
        try {
            admin.deleteTopic(topic, cluster);
        } finally {
            admin.shutdown();
        }
    }

    private static RPCHook signing() {
        String accessKey = System.getProperty("compat.accessKey");
        return accessKey == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, System.getProperty("compat.secretKey")));
    }

    private static final class Commands extends MQAdminStartup {
        static SubCommand find(String name) {
            return SUB_COMMANDS.stream().filter(each -> each.commandName().equals(name)).findFirst().get();
        }
    }

    private static final class Routed extends OutputStream {
        @Override
        public void write(int one) {
            ByteArrayOutputStream output = OUTPUT.get();
            if (output != null) {
                output.write(one);
            }
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            ByteArrayOutputStream output = OUTPUT.get();
            if (output != null) {
                output.write(bytes, from, count);
            }
        }
    }
}
