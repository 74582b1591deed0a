package original;

import java.util.HashMap;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.gateway.filter.GatewayFilter;
import org.springframework.cloud.gateway.filter.factory.AbstractGatewayFilterFactory;
import org.springframework.context.support.GenericApplicationContext;
import org.springframework.core.env.ConfigurableEnvironment;
import org.springframework.core.env.EnumerablePropertySource;
import org.springframework.core.env.MapPropertySource;
import org.springframework.core.env.PropertySource;

/** Spring Cloud Gateway as its starter leaves it: every route is in application.yml. */
@SpringBootApplication
public class Gateway {
    private static final String NEW = "spring.cloud.gateway.server.webflux.";
    private static final String OLD = "spring.cloud.gateway.";

    public static void main(String[] words) {
        SpringApplication application = new SpringApplication(Gateway.class);
        application.addInitializers(context -> {
            ConfigurableEnvironment environment = context.getEnvironment();
            readOldNames(environment);
            GenericApplicationContext beans = (GenericApplicationContext) context;
            for (String name : environment.getProperty("compare.filters", String[].class, new String[0])) {
                beans.registerBean("filter-" + name, Passing.class, () -> new Passing(name));
            }
            for (String name : environment.getProperty("compare.beans", String[].class, new String[0])) {
                beans.registerBean(name, Object.class, Object::new);
            }
        });
        application.run(words);
    }

    /** Files for versions before 4.3 name the same settings otherwise. */
    private static void readOldNames(ConfigurableEnvironment environment) {
        Map<String, Object> renamed = new HashMap<>();
        for (PropertySource<?> source : environment.getPropertySources()) {
            if (source instanceof EnumerablePropertySource<?> names) {
                for (String name : names.getPropertyNames()) {
                    if (name.startsWith(OLD) && !name.startsWith(OLD + "server.")) {
                        renamed.putIfAbsent(NEW + name.substring(OLD.length()), source.getProperty(name));
                    }
                }
            }
        }
        environment.getPropertySources().addLast(new MapPropertySource("renamed", renamed));
    }

    /** Stands for a filter of an application's own: it changes nothing. */
    static class Passing extends AbstractGatewayFilterFactory<Passing.Config> {
        private final String name;

        Passing(String name) {
            super(Config.class);
            this.name = name;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public GatewayFilter apply(Config config) {
            return (exchange, chain) -> chain.filter(exchange);
        }

        public static class Config {}
    }
}
