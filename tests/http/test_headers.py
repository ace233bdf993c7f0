"""Hop-by-hop headers are for neighbours only."""

from hotloop.http.headers import end_to_end


def test_hop_by_hop_headers_are_left_out():
    headers = [(b"Connection", b"close, X-A"), (b"x-a", b"1"), (b"X-B", b"2"), (b"Transfer-Encoding", b"chunked")]
    headers.append((b"Proxy-Authorization", b"Basic c2VjcmV0"))
    assert end_to_end(headers) == [(b"x-b", b"2")]


def test_the_length_goes_with_a_body_that_is_not_touched():
    headers = [(b"Content-Length", b"3"), (b"te", b"trailers")]
    assert end_to_end(headers) == []
    assert end_to_end(headers, keeps_length=True) == [(b"content-length", b"3")]
