package rival;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.netflix.zuul.EnableZuulProxy;

/** Zuul 1 as its starter leaves it: every route is in application.yml. */
@SpringBootApplication
@EnableZuulProxy
public class Gateway {
    public static void main(String[] words) {
        SpringApplication.run(Gateway.class, words);
    }
}
