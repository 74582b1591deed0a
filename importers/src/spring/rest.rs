//! Properties that no part of the importer reads.

use super::filters_words;
use super::report::Report;
use super::settings::{Item, Settings};
use crate::finding::Severity;

/// Groups without effect on the requests that the gateway forwards.
const NO_EFFECT: &[&str] = &[
    "banner",
    "debug",
    "dubbo",
    "eureka",
    "feign",
    "info",
    "javamelody",
    "logging",
    "management",
    "mybatis",
    "mybatis-plus",
    "opentracing",
    "otel",
    "resilience4j",
    "server.connection-timeout",
    "server.error",
    "server.jetty",
    "server.netty",
    "server.servlet.session",
    "server.session",
    "ribbon.eager-load",
    "ribbon.eureka",
    "ribbon.httpclient",
    "ribbon.okhttp",
    "ribbon.restclient",
    "server.shutdown",
    "server.tomcat",
    "server.undertow",
    "spring.aop",
    "spring.application",
    "spring.autoconfigure",
    "spring.banner",
    "spring.batch",
    "spring.boot",
    "spring.cache",
    "spring.cloud.bus",
    "spring.cloud.compatibility-verifier",
    "spring.cloud.config",
    "spring.cloud.consul",
    "spring.cloud.inetutils",
    "spring.cloud.loadbalancer.cache",
    "spring.cloud.loadbalancer.ribbon",
    "spring.cloud.nacos",
    "spring.cloud.openfeign",
    "spring.cloud.refresh",
    "spring.cloud.service-registry",
    "spring.cloud.stream",
    "spring.data",
    "spring.datasource",
    "spring.devtools",
    "spring.docker",
    "spring.flyway",
    "spring.jackson",
    "spring.jmx",
    "spring.jpa",
    "spring.kafka",
    "spring.lifecycle",
    "spring.liquibase",
    "spring.mail",
    "spring.main",
    "spring.messages",
    "spring.output",
    "spring.r2dbc",
    "spring.rabbitmq",
    "spring.redis",
    "spring.session",
    "spring.sleuth",
    "spring.sql",
    "spring.task",
    "spring.thymeleaf",
    "spring.threads",
    "spring.zipkin",
    "spring.profiles",
    "springdoc",
    "springfox",
    "swagger",
    "trace",
    "wavefront",
];

/// Words in names of an application's own settings that hint at access control in its code.
const PROTECTS: &[&str] = &[
    "acl",
    "auth",
    "authentication",
    "authorization",
    "blacklist",
    "cors",
    "gateway",
    "ignore",
    "jwt",
    "limit",
    "oauth2",
    "permission",
    "permit",
    "rate",
    "secret",
    "security",
    "secure",
    "token",
    "white",
    "whitelist",
];

/// Adds a finding for each.
pub fn report(settings: &Settings<'_>, report: &mut Report) {
    let mut all = Vec::new();
    for item in settings.unread() {
        of_groups(item, &mut all);
    }
    for item in all {
        let path = item.path().to_ascii_lowercase().replace('_', "-");
        let within = |group: &str| {
            path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if item.is_empty() {
            report.item(Severity::Cosmetic, &item, "it has no value", None);
        } else if within("spring.security") {
            let effect = "access control by Spring Security is not carried over";
            report.item(Severity::Guard, &item, effect, None);
        } else if NO_EFFECT.iter().any(|group| within(group)) {
            report.item(
                Severity::Cosmetic,
                &item,
                "no effect on the requests that the gateway forwards",
                None,
            );
        } else if within("server") || within("spring.cloud") {
            report.item(Severity::Behaviour, &item, "not carried over", None);
        } else if path.contains(".ribbon.") || path.ends_with(".ribbon") {
            report.item(Severity::Behaviour, &item, "not carried over: a setting of Ribbon", None);
        } else if within("spring") || within("zuul") || within("ribbon") || within("hystrix") {
            report.item(Severity::Behaviour, &item, "not carried over: unknown key", None);
        } else {
            own(&item, report);
        }
    }
}

/// The members of groups that hold settings of many kinds.
fn of_groups<'s>(item: Item<'s>, all: &mut Vec<Item<'s>>) {
    if ["server", "spring", "spring.cloud", "spring.cloud.gateway", "spring.cloud.loadbalancer"]
        .contains(&item.path())
    {
        item.members().into_iter().for_each(|(_, member)| of_groups(member, all));
    } else {
        all.push(item);
    }
}

/// A setting of the application's own code.
fn own(item: &Item<'_>, report: &mut Report) {
    let words = filters_words(item.path());
    if words.iter().any(|word| PROTECTS.contains(&word.as_str())) {
        let effect = "this configures Java code of the application, which is not carried over";
        let hint = "if that code protects routes, protect them here by a plugin such as jwt-auth or key-auth";
        report.item(Severity::Behaviour, item, effect, Some(hint));
    } else {
        let effect = "no setting of the gateway: code of the application may use it";
        report.item(Severity::Cosmetic, item, effect, None);
    }
}
