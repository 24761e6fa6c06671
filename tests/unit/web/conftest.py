"""Sessions for the tests: the demo that comes with the package, and small random ones."""

import asyncio

import httpx
import pytest
import torch

from liesparse.estimators import LieSparseCoder
from liesparse.posterior import make_engine
from liesparse.web.server import make_app
from liesparse.web.session import Session, normalized, open_session


@pytest.fixture(scope="session")
def demo():
    return open_session()


@pytest.fixture(scope="session")
def tiny(make_model):
    """Make a session around a small random model, with three random images."""

    def make(image_shape=(4, 4), *, title="tiny", seed=0, model=None, **settings):
        n_pixels = torch.Size(image_shape).numel()
        model = model or make_model(seed, n_pixels=n_pixels, **{"n_irreps": 3, **settings})
        rng = torch.Generator().manual_seed(seed + 1)
        images = torch.randn(3, n_pixels, generator=rng, dtype=model.dtype)
        examples = torch.stack([normalized(image) for image in images])
        coder = LieSparseCoder.from_model(model, image_shape)
        return Session(title, coder, None, make_engine("adaptive", model.frequencies, dtype=model.dtype), examples)

    return make


class Client:
    """A client without a network: one started application in one event loop."""

    def __init__(self, session, **settings):
        self._runner = asyncio.Runner()
        self.app = make_app(session, **settings)

    def __enter__(self):
        self._life = self.app.router.lifespan_context(self.app)
        self._runner.run(self._life.__aenter__())
        return self

    def __exit__(self, *_error):
        self._runner.run(self._life.__aexit__(None, None, None))
        self._runner.close()

    def all(self, *requests):
        """Send requests at the same time; each is (method, path, options)."""

        async def send():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                tasks = [client.request(method, path, **options) for method, path, options in requests]
                return await asyncio.gather(*tasks)

        return self._runner.run(send())

    def request(self, method, path, **options):
        return self.all((method, path, options))[0]

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, **options):
        return self.request("POST", path, **options)


@pytest.fixture(scope="session")
def make_client():
    return Client
