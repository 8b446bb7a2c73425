//! A web service on actix-web, whose workers are threads with a runtime each.

use std::io;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error, HttpServer, web};
use dormouse::Group;

use crate::known;

pub(crate) fn run() -> io::Result<()> {
    actix_web::rt::System::new().block_on(async {
        let app = || {
            App::new()
                .wrap(from_fn(grouped))
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

async fn grouped(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let group = Group::new(&request.match_pattern().unwrap_or_else(|| "unmatched".to_owned()));
    group.instrument(next.call(request)).await
}

async fn compute() -> &'static str {
    known::burn("/compute", Duration::from_millis(30));
    "computed"
}

async fn never() -> &'static str {
    std::future::pending().await
}

async fn fail() -> &'static str {
    panic!("a handler fails")
}
