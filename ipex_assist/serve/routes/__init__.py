"""The HTTP routes: from a request body to generation requests and a response writer."""
