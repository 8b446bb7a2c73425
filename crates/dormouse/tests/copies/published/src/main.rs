//! The service as an executable.

fn main() {
    published_service::serve();
}
