package rival;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.embedded.tomcat.TomcatServletWebServerFactory;
import org.springframework.boot.web.server.WebServerFactoryCustomizer;
import org.springframework.cloud.netflix.zuul.EnableZuulProxy;
import org.springframework.context.annotation.Bean;

/** Zuul 1 as its starter leaves it: every route is in application.yml. */
@SpringBootApplication
@EnableZuulProxy
public class Gateway {
    public static void main(String[] words) {
        SpringApplication.run(Gateway.class, words);
    }

    /** Tomcat closes a connection after 100 requests; this Spring Boot has no property to lift that. */
    @Bean
    WebServerFactoryCustomizer<TomcatServletWebServerFactory> endlessKeepAlive() {
        return factory -> factory.addConnectorCustomizers(
            connector -> connector.setProperty("maxKeepAliveRequests", "-1"));
    }
}
