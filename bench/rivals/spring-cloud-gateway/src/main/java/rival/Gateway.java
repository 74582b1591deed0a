package rival;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;

/** Spring Cloud Gateway as its starter leaves it: every route is in application.yml. */
@SpringBootApplication
public class Gateway {
    public static void main(String[] words) {
        SpringApplication.run(Gateway.class, words);
    }
}
