//! A web service on actix-web, whose workers are threads with a runtime each.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use actix_web::dev::ServiceRequest;
use actix_web::web::Bytes;
use actix_web::{App, HttpResponse, HttpServer, web};
use dormouse::actix::GroupMiddleware;
use futures_util::stream::unfold;

use crate::known;

/// Events that a stream sends.
const EVENTS: u32 = 5;

pub(crate) fn run() -> io::Result<()> {
    actix_web::rt::System::new().block_on(async {
        let app = || {
            let groups = GroupMiddleware::new(|request: &ServiceRequest| {
                request.match_pattern().unwrap_or_else(|| "unmatched".to_owned()).into()
            });
            App::new()
                .wrap(groups)
                .route("/events", web::get().to(events))
                .route("/compute", web::get().to(compute))
                .route("/never", web::get().to(never))
                .route("/fail", web::get().to(fail))
        };
        let server = HttpServer::new(app)
            .workers(2)
            .h1_allow_half_closed(false)
            .disable_signals()
            .bind(("127.0.0.1", 0))?;
        known::serve(server.addrs()[0]);
        server.run().await
    })
}

async fn compute() -> &'static str {
    known::burn("/compute", Duration::from_millis(30));
    "computed"
}

/// Some events at once; then the stream stays open until its client hangs up.
async fn events() -> HttpResponse {
    let events = unfold(0, async |sent| {
        if sent == EVENTS {
            std::future::pending::<()>().await;
        }
        known::burn("/events", Duration::from_millis(20));
        Some((Ok::<_, Infallible>(Bytes::from_static(b"data: tea\n\n")), sent + 1))
    });
    HttpResponse::Ok().content_type("text/event-stream").streaming(events)
}

async fn never() -> &'static str {
    std::future::pending().await
}

async fn fail() -> &'static str {
    panic!("a handler fails")
}
