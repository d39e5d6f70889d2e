"""Images in prompts: read, and made rows of the text model by its checkpoint's own vision part."""
