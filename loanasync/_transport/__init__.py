"""Transports: one HTTP request over aiohttp, on two paths with one behaviour.

`fast` writes requests directly to the connections of a session that the client opened. `aiohttp_session`
sends them through `ClientSession.request`: with a user's session, with `direct_connections=False`, and with
a version of aiohttp that was not tested. Both follow these rules; each row of the fault matrix tests both:

1. **Request.** Method, URL, headers and body are sent once, as given, with `Host` and `Content-Length`. No
   redirect is followed and no middleware runs. A user's session may add headers, cookies and a proxy.
2. **Sent.** `Request.is_sent` is set in the step that gives the first byte to the connection. From then on
   a missing response means that the request may have arrived: `NoResponse.is_sent` is True.
3. **Reuse.** A connection is used again only after a whole response that did not ask to close it and that
   nothing followed. The socket is checked for unread data first, since the event loop may have been blocked.
   If a kept connection proves unusable before anything was written, the request is sent on another one.
4. **Early response.** A response that came before its request was written belongs to no request. The
   connection is aborted and nothing is sent on it. Interim responses (1xx) are skipped.
5. **Body.** An incomplete body keeps its status and the part that arrived; `Response.fault` names the reason.
   gzip and deflate are decoded, up to 1 MiB. A repeated `Content-Length` is no HTTP (RFC 9112 §6.3).
6. **Head.** Up to 1,000 headers of 64 KiB are read. A head that cannot be parsed is no response.
7. **Deadline.** `connect` limits the wait for a connection, `within` the request as a whole. A response that
   arrived in time is read, even if the event loop was blocked until the deadline had passed.
8. **Cancellation.** Before the first byte, nothing is sent. After it, the connection is not used again; or,
   if `Request.outlives_caller` is set, the response is read in the background: `Request.late` is its future.
9. **Closing.** `aclose` ends all requests in progress with the cause `SessionClosed`.
10. **Errors.** I/O errors become a `NoResponse`, without text and frames: both may hold personal data.
"""
