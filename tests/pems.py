"""Certificates and keys made for these tests only; they give access to nothing."""

from pathlib import Path

PEMS = {
    "one.pem": """\
-----BEGIN CERTIFICATE-----
MIIBcjCCARmgAwIBAgIUL8L8j8DvX5VDpPeowKoWASpDYxIwCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDb25lMCAXDTI2MTEyMTE0NTA0MVoYDzIxMjYxMDI4MTQ1MDQx
WjAOMQwwCgYDVQQDDANvbmUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARnIHq0
4Bv2V01NW75HiE7GqXvbRuXpqIVo5pVrsjiLApRwaHdI1J4DbHy7gEZhPxxKL9vt
EdqcjXddiGsIt4GPo1MwUTAdBgNVHQ4EFgQUWEQZzzBIFte/aO8A5Wb7kcnVxvcw
HwYDVR0jBBgwFoAUWEQZzzBIFte/aO8A5Wb7kcnVxvcwDwYDVR0TAQH/BAUwAwEB
/zAKBggqhkjOPQQDAgNHADBEAiATBgbvVQH91DpVYE6YEkqx7v4XcX1eiaF6mFrO
aaaS4wIgX9mQfKSq+KCZAeYO0r3ufdc48AOAdI+5NvpIT+UEIIM=
-----END CERTIFICATE-----
""",
    "one.key": """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEn81MW6hzdxNowVB
gxFZY51lppyFrFubx62Zouampq+hRANCAARnIHq04Bv2V01NW75HiE7GqXvbRuXp
qIVo5pVrsjiLApRwaHdI1J4DbHy7gEZhPxxKL9vtEdqcjXddiGsIt4GP
-----END PRIVATE KEY-----
""",
    "two.pem": """\
-----BEGIN CERTIFICATE-----
MIIBdDCCARmgAwIBAgIUUsJM8Klg92vn6h3kPkhqc03mN5QwCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDdHdvMCAXDTI2MTEyMTE0NTA0MVoYDzIxMjYxMDI4MTQ1MDQx
WjAOMQwwCgYDVQQDDAN0d28wWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARmR5Ws
b1kgl7HXGYMh1+Km4nJq1zx6usg4fq2C1NDPWlpd7NePBtO6ZNwaCaoWulxa7vuD
Py1lNb3UXQZCZg6Uo1MwUTAdBgNVHQ4EFgQUznpcpmfmdKhOnq8o7JP+3fgGiTww
HwYDVR0jBBgwFoAUznpcpmfmdKhOnq8o7JP+3fgGiTwwDwYDVR0TAQH/BAUwAwEB
/zAKBggqhkjOPQQDAgNJADBGAiEA+ziXehr2vwaCzdGa3FMgWmkEpftsf6uWT/gY
CvEryOcCIQDu8CZEkNKeV7f/Rm8hif9Ud6YgU1blpUcv9SoSX7w3uA==
-----END CERTIFICATE-----
""",
    "two.key": """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgwwTyqj1yjcZ/hP7u
JXWOadirPAvD/CXf62yp+z+yfRShRANCAARmR5Wsb1kgl7HXGYMh1+Km4nJq1zx6
usg4fq2C1NDPWlpd7NePBtO6ZNwaCaoWulxa7vuDPy1lNb3UXQZCZg6U
-----END PRIVATE KEY-----
""",
    "locked.key": """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgvSSyr9HYoXwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEGaXXo/+bpP/G/AXdKcYVk4EgZBN
85YKLWM4wPwbpygULFW+C37HmRpTBC8Hp+2nxCDfHRpUiD4SC4fuEEuYtE1xItSd
AtcKdeSUHkgbfWlVU7umw1UpauDn+f5qaWE2NitJSLeZ/0suBwEupfvu12mLJowZ
m30VMNTeTjmeBLmSojdL+TittYNBR3bpmypuHYxLVgIsYItp9kzoYPNT8iiSgHU=
-----END ENCRYPTED PRIVATE KEY-----
""",
}
"""Two self-signed certificates with their keys, and a copy of the first key with a password."""


def write_pems(folder: Path) -> None:
    """Write all files of `PEMS`, and `both.pem` with both certificates."""
    for name, text in PEMS.items():
        (folder / name).write_text(text)
    (folder / "both.pem").write_text(PEMS["one.pem"] + PEMS["two.pem"])
