//! Dormouse's figures of services in the style of other people's, compared with what those have
//! used and with what their clients have seen.

mod actix;
mod batch;
mod by_task;
mod ends;
mod every_end;
mod grpc;
mod lines;
mod recipes;
mod shop;
mod support;
mod tcp;
mod tls;
mod web;
