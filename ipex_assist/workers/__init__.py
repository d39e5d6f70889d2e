"""Engine processes: started, fed, watched and restarted, for `batch` and `serve`."""
