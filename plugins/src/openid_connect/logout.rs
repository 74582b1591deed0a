//! Logout: the session ends here and, by the browser, at the provider.

use sdk::{Exchange, Plugin, Reply, Step};

use super::OpenidConnect;
use super::client::Form;
use super::login::{LoginRules, redirect, scheme, with_query};
use super::provider::Document;
use super::session::{Kind, Session};

impl OpenidConnect {
    /// Ends the session here, and sends the browser to the provider to end it there.
    pub(super) async fn log_out(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        session: Option<Session>,
    ) -> Step {
        // Also while the provider cannot be reached.
        let secure = scheme(x) == "https";
        if let Err(why) = rules.cookies.forget(x).await {
            return self.storage_unavailable(x, why);
        }
        rules.cookies.remove(x, Kind::Session, 0, secure);
        rules.cookies.remove(x, Kind::Login, 0, secure);
        let Some(document) = self.provider.document(x).await else {
            return Step::Reply(Reply::status(503).because("accessing discovery url failed"));
        };
        if let Some(session) = session.as_ref().filter(|_| self.config.revoke_tokens_on_logout) {
            self.revoke(x, &document, session).await;
        }
        let after = self.config.post_logout_redirect_uri.as_deref();
        let mut params = Form::default();
        let to = match (&document.end_session_url, after) {
            (Some(end), after) => {
                if let Some(session) = &session {
                    params.add("id_token_hint", &session.id_token);
                }
                if let Some(after) = after {
                    params.add("post_logout_redirect_uri", after);
                    // Keycloak and others accept that address only for a client they know.
                    params.add("client_id", &self.config.client_id);
                }
                end.clone()
            }
            (None, Some(after)) => {
                // As in APISIX.
                params.add("post_logout_redirect_uri", after);
                after.to_owned()
            }
            (None, None) => {
                let page = "<html><body>Logged Out</body></html>\n";
                let reply = Reply { body: page.into(), ..Reply::status(200) };
                return Step::Reply(
                    reply.header("Content-Type", "text/html").header("Cache-Control", "no-store"),
                );
            }
        };
        redirect(with_query(&to, params))
    }

    pub(super) async fn revoke(&self, x: &Exchange<'_>, document: &Document, session: &Session) {
        let Some(remote) = &document.revocation else { return };
        let tokens = [("refresh_token", &session.refresh_token), ("access_token", &session.access_token)];
        for (hint, token) in tokens {
            let Some(token) = token else { continue };
            let form = Form::default().with("token", token).with("token_type_hint", hint);
            let method = self.token_method(document);
            let proved = self.client.prove(x, method, &document.revocation_url, form).await;
            let Ok((fields, form)) = proved else { continue };
            if self.provider.send(x, remote, fields, form.bytes()).await.is_err() {
                x.complain(Self::NAME, "a token could not be revoked");
            }
        }
    }
}
