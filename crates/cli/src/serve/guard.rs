//! The checks that every request passes before anything else happens.
//!
//! 1. `Host` names this server. A stranger's page can have its own name lead to this address, and
//!    is then of the same origin for a browser; an address in digits it cannot.
//! 2. `Origin`, where a browser sends one, is that host; a page of another site gets nothing. It
//!    may link to the page, which has no data in it.
//! 3. The token, for all but the page without data and the sign of life.
//!
//! There are no cookies. The one right that a browser brings along by itself is the password that
//! its user has given to `/metrics` or to a profile, where alone it is asked for one.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;

use super::answers::{bad, refusal, unauthorized, wrong_method};
use super::token::Token;

/// The longest path with its query.
const LONGEST: usize = 8 * 1024;

/// The sign of life.
pub(super) const HEALTHY: &str = "/-/healthy";

/// The conditions.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) token: Token,
    /// Names that this machine is called by, in small letters.
    pub(super) names: Vec<String>,
    pub(super) public_metrics: bool,
}

impl Guard {
    /// The answer to a request that does not pass.
    pub(super) fn refuse(&self, request: &Request) -> Option<Response> {
        let path = request.uri().path();
        if request.uri().path_and_query().is_some_and(|it| it.as_str().len() > LONGEST) {
            let message = format!("the address is longer than {LONGEST} bytes");
            return Some(refusal(StatusCode::URI_TOO_LONG, "usage", &message));
        }
        // A cluster's probe of life has its own idea of the name.
        if path == HEALTHY {
            return None;
        }
        let is_safe = [Method::GET, Method::HEAD].contains(request.method());
        self.stranger(request, path == "/" && is_safe)
            .or_else(|| costly_head(request))
            .or_else(|| self.without_token(path, request.headers(), is_safe))
    }

    /// Refuses what comes from elsewhere; a link from elsewhere to the page is fine.
    fn stranger(&self, request: &Request, is_page: bool) -> Option<Response> {
        let headers = request.headers();
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Some(bad("there must be one Host"));
        };
        let host = host.to_str().unwrap_or_default();
        // A proxy's form of a request names the host twice.
        let named = request.uri().authority().map(Authority::as_str);
        if named.is_some_and(|named| named != host) || !self.is_ours(host) {
            let message = "the request's Host is not a name of this server: --allow-host NAME adds one";
            return Some(refusal(StatusCode::FORBIDDEN, "forbidden", message));
        }
        let is_own = |origin: &str| {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let from = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let is_foreign = match (from(ORIGIN.as_str()), from("sec-fetch-site")) {
            (Some(origin), _) if !is_own(origin) => true,
            (_, None | Some("same-origin" | "none")) => false,
            _ => !(is_page && from("sec-fetch-mode") == Some("navigate")),
        };
        let message = "requests from pages of other sites are refused";
        is_foreign.then(|| refusal(StatusCode::FORBIDDEN, "forbidden", message))
    }

    /// Whether a host, with or without a port, is this one.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let digits = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = name.to_ascii_lowercase();
        digits.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }

    /// Whether a request has the token.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| password(value.as_bytes()));
        given.is_some_and(|given| self.token.is(&given))
    }

    fn without_token(&self, path: &str, headers: &HeaderMap, is_safe: bool) -> Option<Response> {
        let is_public = path == "/" || path == "/metrics" && self.public_metrics;
        if is_public && is_safe || self.knows(headers) {
            return None;
        }
        // A browser that has asked for a password sends it along for any page: so it is asked for
        // one only where people read the answer.
        Some(unauthorized(path == "/metrics" || path.contains("/debug/pprof/")))
    }
}

/// Refuses to begin something for a client that wants its head alone.
fn costly_head(request: &Request) -> Option<Response> {
    let is_refused = request.method() == Method::HEAD && is_costly(request.uri().path());
    is_refused.then(|| wrong_method("GET"))
}

/// Whether an answer begins something in a service.
pub(super) fn is_costly(path: &str) -> bool {
    path.contains("/debug/pprof/") || path.starts_with("/api/processes/")
}

/// The token in `Bearer TOKEN`, or the password in `Basic`.
fn password(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at(value.iter().position(|&byte| byte == b' ')?);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(rest.to_vec());
    }
    let pair = scheme
        .eq_ignore_ascii_case(b"basic")
        .then(|| STANDARD_PAD_INDIFFERENT.decode(rest).ok())
        .flatten()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    const SECRET: &str = "0123456789abcdef";

    fn guard(public_metrics: bool) -> (tempfile::TempDir, Guard) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, SECRET).unwrap();
        let token = Token::of_file(&file).unwrap();
        (directory, Guard { token, names: vec!["tea.example".into()], public_metrics })
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    const HOST_OK: (&str, &str) = ("host", "127.0.0.1:9464");
    const BEARER: (&str, &str) = ("authorization", "Bearer 0123456789abcdef");

    fn status(guard: &Guard, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        guard.refuse(&request(method, path, headers)).map_or(200, |response| response.status().as_u16())
    }

    #[test]
    fn hosts_that_can_be_rebound_are_refused() {
        let (_directory, guard) = guard(false);
        for (host, expected) in [
            ("127.0.0.1:9464", 200),
            ("127.0.0.1", 200),
            ("localhost:1", 200),
            ("LocalHost", 200),
            ("[::1]:9464", 200),
            ("10.0.0.7:9464", 200),
            ("tea.example:9464", 200),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example:9464", 403),
            ("tea.example.evil", 403),
            ("", 403),
        ] {
            assert_eq!(status(&guard, "GET", "/api/me", &[("host", host), BEARER]), expected, "{host}");
        }
        assert_eq!(status(&guard, "GET", "/api/me", &[BEARER]), 400);
        assert_eq!(status(&guard, "GET", "/api/me", &[HOST_OK, HOST_OK, BEARER]), 400);
        assert_eq!(status(&guard, "GET", "http://evil/api/me", &[HOST_OK, BEARER]), 403);
        assert_eq!(status(&guard, "GET", HEALTHY, &[("host", "evil")]), 200);
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let (_directory, guard) = guard(true);
        for (path, name, value, expected) in [
            ("/api/me", "origin", "http://127.0.0.1:9464", 200),
            ("/api/me", "origin", "https://127.0.0.1:9464", 200),
            ("/api/me", "origin", "http://127.0.0.1:3000", 403),
            ("/api/me", "origin", "http://evil.example", 403),
            ("/api/me", "origin", "null", 403),
            ("/api/me", "sec-fetch-site", "same-origin", 200),
            ("/api/me", "sec-fetch-site", "same-site", 403),
            ("/metrics", "sec-fetch-site", "cross-site", 403),
            ("/", "sec-fetch-site", "cross-site", 403),
        ] {
            let headers = [HOST_OK, BEARER, (name, value)];
            assert_eq!(status(&guard, "GET", path, &headers), expected, "{path} {name} {value}");
        }
        let link = [HOST_OK, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(status(&guard, "GET", "/", &link), 200);
        assert_eq!(status(&guard, "GET", "/metrics", &link), 403);
    }

    #[test]
    fn the_token_is_asked_of_everybody() {
        let (_directory, guard) = guard(true);
        for (value, expected) in [
            ("Bearer 0123456789abcdef", 200),
            ("bearer  0123456789abcdef ", 200),
            ("Basic dG9rZW46MDEyMzQ1Njc4OWFiY2RlZg==", 200),
            ("Basic OjAxMjM0NTY3ODlhYmNkZWY", 200),
            ("Basic dG9rZW46", 401),
            ("Basic OjAxMjM0NTY3ODlhYmNkZWZ=", 401),
            ("Basic !!", 401),
            ("Bearer 0123456789abcdeg", 401),
            ("Bearer", 401),
            ("", 401),
        ] {
            let headers = [HOST_OK, ("authorization", value)];
            assert_eq!(status(&guard, "GET", "/api/me", &headers), expected, "{value}");
        }
        let open = |method, path| status(&guard, method, path, &[HOST_OK]);
        assert_eq!((open("GET", "/"), open("HEAD", "/"), open("GET", "/metrics")), (200, 200, 200));
        assert_eq!((open("POST", "/"), open("GET", "/x"), open("GET", "/metrics/")), (401, 401, 401));
        assert_eq!(status(&guard, "GET", &format!("/{}", "x".repeat(LONGEST)), &[HOST_OK]), 414);
        assert_eq!(status(&guard, "HEAD", "/api/processes/1/keys", &[HOST_OK, BEARER]), 405);
    }
}
